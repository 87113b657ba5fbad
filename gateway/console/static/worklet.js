// Sound from a microphone as 16-bit samples, a tenth of a second at a time.

class Pcm extends AudioWorkletProcessor {
  constructor() {
    super();
    this.buffer = new Int16Array(sampleRate / 10);
    this.filled = 0;
  }

  process([[channel]]) {
    for (const sample of channel || []) {
      this.buffer[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
      if (this.filled === this.buffer.length) {
        this.port.postMessage(this.buffer.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("pcm", Pcm);
