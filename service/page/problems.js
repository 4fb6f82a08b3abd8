/* What can go wrong, and what a person can do about it. */

/** Why a question has no answer: the service's problem document, or the page's own. */
export class Problem extends Error {
  constructor({ code, title, detail = "", retryAfterS = null }) {
    super(title);
    this.code = code;
    this.title = title;
    this.detail = detail;
    this.retryAfterS = retryAfterS;
  }
}

export const UNREACHABLE = {
  code: "unreachable",
  title: "The server does not answer",
  detail: "it may have stopped, or the network is down",
};
export const CUT_OFF = {
  code: "cut_off",
  title: "The connection broke",
  detail: "the server answers, but this picture did not get through",
};
export const TIMED_OUT = {
  code: "timed_out",
  title: "The answer took too long",
  detail: "the server did not answer in time",
};
export const NOT_UNDERSTOOD = {
  code: "not_understood",
  title: "The answer could not be read",
  detail: "what answered is not the service that this page belongs to",
};

const ADVICE = {
  unreachable: "Retry when the server is back; the picture is still here.",
  cut_off: "Retry; if it happens again, try a smaller file.",
  timed_out: "Retry; if it happens again, ask whoever runs the server.",
  not_authenticated: "Enter a key above; the picture is then sent again.",
  body_too_large: "Export the picture smaller, or as JPEG, and add it again.",
  upload_too_slow: "Retry on a faster connection, or with a smaller file.",
  unsupported_media: "Export it as JPEG, PNG or WebP and add it again.",
  invalid_upload: "Export or take the picture again and add it.",
  unusable_image: "Export or take the picture again and add it.",
  quota_exceeded: "This key has asked as often as it may for now.",
  overloaded: "The server is busy; nothing is wrong with the picture.",
  not_ready: "The server is starting or stopping; nothing is wrong with the picture.",
  out_of_memory: "The server is busy; nothing is wrong with the picture.",
  deadline_passed: "The server is busy; nothing is wrong with the picture.",
  audit_unavailable: "The server may not answer without its log; tell whoever runs it.",
};
const OTHER_ADVICE = "If it happens again, tell whoever runs the server.";

/** What to do about a problem, in words. */
export function advice(problem) {
  const wait = problem.retryAfterS === null ? "" : ` Retry in ${seconds(problem.retryAfterS)}.`;
  return (ADVICE[problem.code] ?? OTHER_ADVICE) + wait;
}

/** A problem's detail as a sentence. */
export function sentence(words) {
  const first = words.charAt(0).toUpperCase() + words.slice(1);
  return first === "" || /[.!?]$/.test(first) ? first : `${first}.`;
}

function seconds(count) {
  return count === 1 ? "1 second" : `${count} seconds`;
}
