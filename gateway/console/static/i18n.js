// What the page says, in English and Spanish. What the API says, it says in English.

export const LANGUAGES = [
  ["en", "English"],
  ["es", "Español"],
];

const TEXTS = {
  "nav": ["Panels", "Paneles"],
  "skip": ["Skip to content", "Saltar al contenido"],
  "loading": ["Asking the gateway…", "Consultando la pasarela…"],
  "nothing": ["There is nothing to show yet.", "Todavía no hay nada que mostrar."],
  "cancel": ["Cancel", "Cancelar"],
  "stop": ["Stop", "Detener"],
  "stopped": ["Stopped.", "Detenido."],
  "model": ["Model", "Modelo"],
  "language": ["Language of this page", "Idioma de esta página"],
  "theme": ["Colours", "Colores"],
  "theme.auto": ["Auto", "Auto"],
  "theme.light": ["Light", "Claro"],
  "theme.dark": ["Dark", "Oscuro"],
  "download": ["Download {kind}", "Descargar {kind}"],
  "error.status": ["The gateway answered {status}.", "La pasarela respondió {status}."],
  "error.unreachable": [
    "The gateway does not answer; trying again.",
    "La pasarela no responde; se volverá a intentar.",
  ],

  "key.button": ["API key", "Clave"],
  "key.title": ["API key", "Clave de API"],
  "key.label": ["Key", "Clave"],
  "key.kept": [
    "Kept in this tab only, until it is closed.",
    "Se guarda solo en esta pestaña, hasta que se cierre.",
  ],
  "key.use": ["Use key", "Usar clave"],
  "key.needed": ["This deployment asks for an API key.", "Este despliegue pide una clave de API."],
  "key.wrong": [
    "This API key is not accepted here; check it and type it again.",
    "Esta clave de API no se acepta aquí; revísela y vuelva a escribirla.",
  ],

  "panel.speech": ["Speech", "Voz"],
  "panel.text": ["Text", "Texto"],
  "panel.pictures": ["Pictures", "Imágenes"],
  "panel.search": ["Search", "Búsqueda"],
  "panel.status": ["Status", "Estado"],
  "lead.speech": [
    "Turn a recording, or what you say now, into text.",
    "Convierta en texto una grabación, o lo que diga ahora.",
  ],
  "lead.text": [
    "Let a model continue a text or answer a message.",
    "Deje que un modelo continúe un texto o responda a un mensaje.",
  ],
  "lead.pictures": [
    "Show a model pictures and ask about them.",
    "Muestre imágenes a un modelo y pregunte por ellas.",
  ],
  "lead.search": [
    "Keep texts and pictures, and find them by what they mean.",
    "Guarde textos e imágenes y encuéntrelos por su significado.",
  ],
  "lead.status": [
    "What is served, by which instances, and how they do.",
    "Qué se sirve, con qué instancias y cómo están.",
  ],
  "kind.speech": ["Speech", "Voz"],
  "kind.text": ["Text", "Texto"],

  "speech.source": ["Sound", "Sonido"],
  "speech.sound": ["The recording", "La grabación"],
  "speech.result": ["Transcript", "Transcripción"],
  "speech.drop": ["Drop a recording here, or choose a file", "Suelte aquí una grabación o elija una"],
  "speech.kinds": [
    "Any format: wav, mp3, flac, m4a, ogg, video…",
    "Cualquier formato: wav, mp3, flac, m4a, ogg, vídeo…",
  ],
  "speech.record": ["Record", "Grabar"],
  "speech.recordstop": ["Stop recording", "Detener grabación"],
  "speech.recording": ["Recording…", "Grabando…"],
  "speech.live": ["Live captions", "Subtítulos en vivo"],
  "speech.livestop": ["Stop captions", "Detener subtítulos"],
  "speech.again": ["Transcribe again", "Transcribir de nuevo"],
  "speech.working": ["Transcribing…", "Transcribiendo…"],
  "speech.silence": ["Nobody speaks in this recording.", "Nadie habla en esta grabación."],
  "speech.large": [
    "{name} is larger than {most} MB, which is the most here; compress or cut it.",
    "{name} supera {most} MB, el máximo aquí; comprímalo o córtelo.",
  ],
  "speech.language": ["Spoken language", "Idioma hablado"],
  "speech.detect": ["Detect", "Detectar"],
  "speech.task": ["Task", "Tarea"],
  "speech.transcribe": ["Transcribe", "Transcribir"],
  "speech.translate": ["Translate into English", "Traducir al inglés"],
  "speech.prompt": ["Prompt", "Indicación"],
  "speech.names": ["names, spelling", "nombres, ortografía"],
  "speech.facts": [
    "Language: {heard}. {duration} s of sound in {seconds} s, {speed} times as fast as it plays.",
    "Idioma: {heard}. {duration} s de sonido en {seconds} s, {speed} veces más rápido que al reproducirlo.",
  ],
  "mic.where": [
    "The microphone works on localhost and over HTTPS only.",
    "El micrófono funciona solo en localhost y por HTTPS.",
  ],
  "mic.insecure": [
    "Browsers give the microphone to pages on localhost or over HTTPS only; open this page there.",
    "Los navegadores solo dan el micrófono a páginas en localhost o por HTTPS; abra esta página así.",
  ],
  "mic.denied": [
    "The browser does not let this page use the microphone; allow it in the address bar.",
    "El navegador no permite usar el micrófono; autorícelo en la barra de direcciones.",
  ],
  "mic.none": ["No microphone was found.", "No se encontró ningún micrófono."],
  "live.connecting": ["Connecting…", "Conectando…"],
  "live.listening": [
    "Listening: words appear while you speak.",
    "Escuchando: las palabras aparecen mientras habla.",
  ],
  "live.over": ["The live session is over.", "La sesión en vivo ha terminado."],
  "live.lost": [
    "The live session was lost; start it again.",
    "Se perdió la sesión en vivo; iníciela de nuevo.",
  ],
  "live.refused": [
    "The live session was refused: the key is not accepted, or all places are taken.",
    "La sesión en vivo fue rechazada: la clave no se acepta o no quedan plazas.",
  ],
  "live.key": [
    "A browser cannot send this key with a live session; use one of letters, digits, - and _.",
    "El navegador no puede enviar esta clave en una sesión en vivo; use letras, cifras, - y _.",
  ],

  "text.ask": ["Request", "Petición"],
  "text.mode": ["Kind", "Tipo"],
  "text.completion": ["Completion", "Continuación"],
  "text.chat": ["Chat", "Conversación"],
  "text.prompt": ["Prompt", "Entrada"],
  "text.keys": ["Ctrl+Enter sends it, in a chat Enter.", "Ctrl+Intro lo envía, en una conversación Intro."],
  "text.send": ["Generate", "Generar"],
  "text.clear": ["New conversation", "Nueva conversación"],
  "text.answer": ["Answer", "Respuesta"],
  "text.user": ["You", "Usted"],
  "text.assistant": ["Model", "Modelo"],
  "text.writing": ["Writing…", "Escribiendo…"],
  "text.empty": ["Type a prompt first.", "Escriba primero una entrada."],
  "text.nothing": [
    "The model ended at once without a word; try another prompt or more tokens.",
    "El modelo terminó sin decir nada; pruebe otra entrada o más tokens.",
  ],
  "text.max_tokens": ["Most tokens", "Máximo de tokens"],
  "text.min_tokens": ["Least tokens", "Mínimo de tokens"],
  "text.temperature": ["Temperature", "Temperatura"],
  "text.top_p": ["Top p", "Top p"],
  "text.seed": ["Seed", "Semilla"],
  "text.stop": ["Stop at", "Parar en"],
  "text.facts": [
    "{read} tokens read, {made} made; the first after {wait} ms, {rate} per second in all.",
    "{read} tokens leídos, {made} generados; el primero a los {wait} ms, {rate} por segundo en total.",
  ],

  "pictures.drop": ["Drop pictures here, paste or choose them", "Suelte, pegue o elija aquí imágenes"],
  "pictures.kinds": ["PNG, JPEG, WebP, GIF, BMP", "PNG, JPEG, WebP, GIF, BMP"],
  "pictures.chosen": ["Pictures of the next question", "Imágenes de la próxima pregunta"],
  "pictures.remove": ["Remove {name}", "Quitar {name}"],
  "pictures.none": ["{name} is not a picture; choose one.", "{name} no es una imagen; elija una."],
  "pictures.question": ["Question", "Pregunta"],
  "pictures.ask": ["Ask", "Preguntar"],
  "pictures.looking": ["Looking…", "Mirando…"],
  "pictures.empty": ["Type a question first.", "Escriba primero una pregunta."],
  "pictures.first": ["Choose a picture first.", "Elija primero una imagen."],

  "search.stores": ["Vector stores", "Almacenes vectoriales"],
  "search.store": ["Vector store", "Almacén vectorial"],
  "search.new": ["Name of a new store", "Nombre de un almacén nuevo"],
  "search.create": ["Create", "Crear"],
  "search.delete": ["Delete store", "Eliminar almacén"],
  "search.created": ["{name} is there.", "{name} está creado."],
  "search.deleted": ["{name} is deleted.", "{name} está eliminado."],
  "search.deletetitle": ["Delete {name}?", "¿Eliminar {name}?"],
  "search.deletes": [
    "It cannot be searched any more. Its files stay at /v1/files.",
    "Ya no se podrá buscar en él. Sus archivos permanecen en /v1/files.",
  ],
  "search.nostore": ["Create a vector store first.", "Cree primero un almacén vectorial."],
  "search.noname": ["Type a name for the new store.", "Escriba un nombre para el almacén nuevo."],
  "search.counts": [
    "{total} files: {completed} indexed, {going} in progress, {failed} failed. Embedded by {by}.",
    "{total} archivos: {completed} indexados, {going} en curso, {failed} fallidos. Vectores de {by}.",
  ],
  "search.files": ["Files", "Archivos"],
  "search.drop": ["Drop files here, or choose them", "Suelte aquí archivos o elíjalos"],
  "search.kinds": ["Texts, HTML, PDF, pictures", "Textos, HTML, PDF, imágenes"],
  "search.texts": ["Texts, HTML, PDF", "Textos, HTML, PDF"],
  "search.attributes": ["Attributes of the next files", "Atributos de los próximos archivos"],
  "search.attributehint": [
    "One a line, name = value. A picture is found by its caption, too: caption = The harbour at dawn",
    "Uno por línea: nombre = valor. Una imagen se halla también por caption = El puerto al alba",
  ],
  "search.attribute": [
    "“{line}” is not an attribute; write name = value.",
    "«{line}» no es un atributo; escriba nombre = valor.",
  ],
  "search.large": [
    "{name} is larger than {most} MB, which is the most here; send a smaller one.",
    "{name} supera {most} MB, el máximo aquí; envíe uno más pequeño.",
  ],
  "search.uploading": ["Uploading {name}…", "Subiendo {name}…"],
  "search.more": ["More files", "Más archivos"],
  "search.removefile": ["Remove {name} from this store", "Quitar {name} de este almacén"],
  "search.completed": ["indexed", "indexado"],
  "search.in_progress": ["in progress", "en curso"],
  "search.failed": ["failed", "fallido"],
  "search.cancelled": ["cancelled", "cancelado"],
  "search.by": ["Search by", "Buscar por"],
  "search.text": ["Text", "Texto"],
  "search.picture": ["Picture", "Imagen"],
  "search.query": ["Query", "Consulta"],
  "search.querydrop": ["Drop a picture here, paste or choose one", "Suelte, pegue o elija aquí una imagen"],
  "search.question": ["Question about the picture (optional)", "Pregunta sobre la imagen (opcional)"],
  "search.questionhint": [
    "A model answers it, and its answer is searched for.",
    "Un modelo la responde y se busca su respuesta.",
  ],
  "search.answerer": ["Model that answers", "Modelo que responde"],
  "search.most": ["Most results", "Máximo de resultados"],
  "search.find": ["Search", "Buscar"],
  "search.results": ["Results", "Resultados"],
  "search.searching": ["Searching…", "Buscando…"],
  "search.noquery": ["Type a query first.", "Escriba primero una consulta."],
  "search.nopicture": ["Choose a picture first.", "Elija primero una imagen."],
  "search.found": ["{count} results in {ms} ms.", "{count} resultados en {ms} ms."],
  "search.nothing": ["Nothing was found, in {ms} ms.", "No se encontró nada, en {ms} ms."],
  "search.scores": [
    "Scores go from 0 to 1: cosines, or ranks where texts and pictures are in one list.",
    "Las puntuaciones van de 0 a 1: cosenos, o rangos donde textos e imágenes forman una lista.",
  ],
  "search.cosines": ["Cosine: {cosines}", "Coseno: {cosines}"],

  "status.summary": ["{serving} of {all} instances serve.", "{serving} de {all} instancias en servicio."],
  "status.models": ["Models", "Modelos"],
  "status.family": ["Family", "Familia"],
  "status.target": ["Target", "Motor"],
  "status.precision": ["Precision", "Precisión"],
  "status.loaded": ["chosen by the engine", "elegida por el motor"],
  "status.capabilities": ["Capabilities", "Capacidades"],
  "status.instances": ["Instances", "Instancias"],
  "status.flight": ["In flight", "En curso"],
  "status.queue": ["Queue, mean wait", "Espera media en cola"],
  "status.idle": ["no requests", "sin peticiones"],
  "status.restarts": ["Restarts", "Reinicios"],
  "status.counts": ["{restarts} ({deaths} unplanned)", "{restarts} ({deaths} imprevistos)"],
  "status.probe": ["Last probe", "Última prueba"],
  "status.probed": ["{at}, {ms} ms; last success {ago} s ago", "{at}, {ms} ms; último éxito hace {ago} s"],
  "status.log": ["What the guards did", "Qué hicieron los guardianes"],
  "state.serving": ["serving", "en servicio"],
  "state.starting": ["starting", "arrancando"],
  "state.draining": ["draining", "drenando"],
  "state.unreachable": ["unreachable", "inaccesible"],
  "log.time": ["Time", "Hora"],
  "log.instance": ["Instance", "Instancia"],
  "log.event": ["Event", "Suceso"],
  "log.detail": ["Detail", "Detalle"],
  "chart.title": ["The last 15 minutes", "Los últimos 15 minutos"],
  "chart.rate": ["Requests", "Peticiones"],
  "chart.failures": ["Errors (4xx, 5xx)", "Errores (4xx, 5xx)"],
  "chart.mean": ["Time to answer, mean", "Tiempo de respuesta, media"],
  "chart.p95": ["Time to answer, 95th percentile", "Tiempo de respuesta, percentil 95"],
  "chart.per": ["/s", "/s"],
  "chart.ago": ["−{ago} min", "−{ago} min"],
  "chart.now": ["now", "ahora"],
  "operate.off": [
    "Restarts from this page are off; ADMIN_KEYS_FILE turns them on.",
    "Los reinicios desde esta página están desactivados; ADMIN_KEYS_FILE los activa.",
  ],
  "operate.denied": [
    "Type an admin key to restart instances.",
    "Escriba una clave de administración para reiniciar instancias.",
  ],
  "operate.allowed": ["This key may restart instances.", "Esta clave puede reiniciar instancias."],
  "restart.do": ["Drain and restart", "Drenar y reiniciar"],
  "restart.title": ["Restart {name}?", "¿Reiniciar {name}?"],
  "restart.pool": [
    "Its requests are finished first; meanwhile the other instances of {model} take new ones.",
    "Antes se terminan sus peticiones; mientras tanto, las demás instancias de {model} atienden las nuevas.",
  ],
  "restart.alone": [
    "It is the only instance of {model}: until it is back, requests for this model are refused.",
    "Es la única instancia de {model}: hasta que vuelva, se rechazan las peticiones para este modelo.",
  ],
  "restart.asked": ["{name} drains and restarts.", "{name} se drena y se reinicia."],

  "example.title": ["The same with curl and Python", "Lo mismo con curl y Python"],
  "example.copy": ["Copy", "Copiar"],
  "example.copied": ["Copied", "Copiado"],
  "example.live": ["curl has no microphone; it sends a file", "curl no tiene micrófono; envía un archivo"],
};

const codes = LANGUAGES.map(([code]) => code);
const wanted = [
  localStorage.getItem("conch-language"),
  ...navigator.languages.map((name) => name.slice(0, 2)),
];

/** The page's language. */
export const language = wanted.find((code) => codes.includes(code)) || "en";

/** A text in it; {name} stands for a value. */
export function t(id, values = {}) {
  return TEXTS[id][codes.indexOf(language)].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Change the page's language; what was typed is lost, the key is kept. */
export function choose(code) {
  localStorage.setItem("conch-language", code);
  location.reload();
}
