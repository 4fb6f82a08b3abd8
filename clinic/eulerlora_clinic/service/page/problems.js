/* Problems, and advice on how to solve them. */

const TEMPORARY_REFUSALS = [408, 429]; // a slow upload, a quota

/** A failed request: the problem document of the service, or a problem of the page itself. */
export class Problem extends Error {
  constructor({ code, status, title, detail = "", retryAfterS = null }) {
    super(title);
    this.code = code;
    this.status = status; // undefined without a response
    this.title = title;
    this.detail = detail;
    this.retryAfterS = retryAfterS;
  }

  /** True if the same request may succeed later; a file that was refused will be refused again. */
  get isTemporary() {
    const isRefusal = this.status >= 400 && this.status < 500;
    return !isRefusal || TEMPORARY_REFUSALS.includes(this.status);
  }
}

export const UNREACHABLE = {
  code: "unreachable",
  title: "The server does not respond",
  detail: "it may have stopped, or the network is down",
};
export const UPLOAD_FAILED = {
  code: "upload_failed",
  title: "The connection broke",
  detail: "the server responds, but the upload of this image failed",
};
export const TIMED_OUT = {
  code: "timed_out",
  title: "The request timed out",
  detail: "the server did not respond in time",
};
export const UNREADABLE = {
  code: "unreadable",
  title: "The response could not be read",
  detail: "it does not come from the service of this page",
};

export const EMPTY_FILE = {
  code: "invalid_upload",
  status: 422,
  title: "The file is empty",
  detail: "expected a JPEG, PNG or WebP image; the file has no content",
};
export const UNREADABLE_FILE = {
  code: "unreadable_file",
  status: 422,
  title: "The file cannot be read",
  detail: "it has changed or disappeared since it was added",
};
export const FILE_GONE = {
  code: "file_gone",
  status: 422,
  title: "The page was reloaded before the result came",
  detail: "the page no longer has the file",
};
/** The problem of a file that is not read; `kind`: what it is, if that is known. */
export function noImage(kind) {
  if (kind?.is_read) {
    return {
      code: "metadata_kept",
      status: 415,
      title: "The metadata cannot be removed",
      detail: `this is ${kind.name}, whose metadata this page cannot remove; the file was not sent`,
    };
  }
  const what = kind === undefined ? "" : `; this is ${kind.name}: ${kind.advice}`;
  return {
    code: "unsupported_media",
    status: 415,
    title: "The media type is not supported",
    detail: `expected a JPEG, PNG or WebP image${what}; the file was not sent`,
  };
}
export const PAGE_FAILED = {
  code: "page_failed",
  title: "The page failed",
  detail: "the response could not be displayed",
};
export const NOT_ASKED = {
  code: "not_asked",
  title: "Not assessed",
  detail: "it was saved before its result",
};

const ADVICE = {
  unreachable: "Retry when the server is available again; the image is still on this page.",
  upload_failed: "Retry. If the problem persists, use a smaller file.",
  timed_out: "Retry. If the problem persists, contact the operator of the server.",
  not_authenticated: "Enter a key above; the image is then sent again.",
  body_too_large: "Export a smaller image, or a JPEG file, and add it again.",
  upload_too_slow: "Retry on a faster connection, or with a smaller file.",
  unsupported_media: "Export the image as JPEG, PNG or WebP and add it again.",
  metadata_kept: "Switch off “Remove metadata from the files”, and add the file again.",
  invalid_upload: "Export or take the image again and add it.",
  unreadable_file: "Add the file again.",
  file_gone: "Add the file again.",
  unusable_image: "Export or take the image again and add it.",
  quota_exceeded: "The rate limit of this key is reached.",
  overloaded: "The server is busy; the image is not the cause.",
  not_ready: "The server is starting or stopping; the image is not the cause.",
  out_of_memory: "The server is busy; the image is not the cause.",
  deadline_passed: "The server is busy; the image is not the cause.",
  audit_unavailable: "The server requires its audit log; contact the operator.",
};
const OTHER_ADVICE = "If the problem persists, contact the operator of the server.";

/** What a person can do about a problem. */
export function advice(problem) {
  const delay = problem.retryAfterS === null ? "" : ` Retry in ${seconds(problem.retryAfterS)}.`;
  return (ADVICE[problem.code] ?? OTHER_ADVICE) + delay;
}

/** A text with a capital letter and a full stop. */
export function sentence(text) {
  const capitalised = text.charAt(0).toUpperCase() + text.slice(1);
  return capitalised === "" || /[.!?]$/.test(capitalised) ? capitalised : `${capitalised}.`;
}

function seconds(number) {
  return number === 1 ? "1 second" : `${number} seconds`;
}
