"""Names that several packages need. Those of Triton models are upstream's, for upstream's clients."""

ENGINE = "tensorrt_llm_stream"  # the engine itself, decoupled
ENGINE_UNARY = "tensorrt_llm"  # its unary face
SPEECH = "whisper_bls"
TEXT = "tensorrt_llm_bls"
PICTURES = "multimodal_encoders"  # pictures to rows of a prompt-embedding table
EMBEDDERS = {"minilm": "minilm", "clip": "clip_text"}  # texts to vectors, by family
PICTURE_EMBEDDERS = {"clip": "clip_image"}  # pictures to vectors
SPEAKER_SEGMENTATION = "speaker_segmentation"  # ten seconds of sound to its local speakers
SPEAKER_EMBEDDING = "speaker_embedding"  # sound to vectors of voices
LONGEST = (
    "longest_row"  # a parameter of a Triton model: the most of a size that its configuration leaves open
)
PICTURE_URLS = ("image_url_input", "image_urls")  # inputs of TEXT that hold whole pictures as text
BYTES = "bytes:"  # begins the text of a token that is part of a character, followed by \x and hex digits
BREAK = "\ufdd0"  # in a prompt: the texts on both sides are tokenized apart, and it is left out
UNIQUE_ID = r"\.[0-9a-f]{16}-\d+$"  # the end of a request's id that a guard has made: no other request has it
RANK_MODULE = "serving.engine.torch.ranks"  # a process of the torch engine for each further GPU
AT_ONCE = "x-conch-at-once"  # a header of KServe requests: do not wait for a server that restarts
