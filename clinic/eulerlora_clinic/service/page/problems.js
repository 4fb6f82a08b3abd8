/* Problems, and advice on how to solve them. */

import { plural, t } from "./language.js";

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

  /** Both texts as one. */
  get text() {
    if (!this.detail) return sentence(this.title);
    return t("{name}: {value}", { name: this.title, value: sentence(this.detail) });
  }

  /** True if the same request may succeed later; a file that was refused will be refused again. */
  get isTemporary() {
    const isRefusal = this.status >= 400 && this.status < 500;
    return !isRefusal || TEMPORARY_REFUSALS.includes(this.status);
  }
}

export const UNREACHABLE = {
  code: "unreachable",
  title: t("The server does not respond"),
  detail: t("it may have stopped, or the network is down"),
};
export const UPLOAD_FAILED = {
  code: "upload_failed",
  title: t("The connection broke"),
  detail: t("the server responds, but the upload of this image failed"),
};
export const TIMED_OUT = {
  code: "timed_out",
  title: t("The request timed out"),
  detail: t("the server did not respond in time"),
};
export const UNREADABLE = {
  code: "unreadable",
  title: t("The response could not be read"),
  detail: t("it does not come from the service of this page"),
};

export const EMPTY_FILE = {
  code: "invalid_upload",
  status: 422,
  title: t("The file is empty"),
  detail: t("expected a JPEG, PNG or WebP image; the file has no content"),
};
export const UNREADABLE_FILE = {
  code: "unreadable_file",
  status: 422,
  title: t("The file cannot be read"),
  detail: t("it has changed or disappeared since it was added"),
};
export const FILE_GONE = {
  code: "file_gone",
  status: 422,
  title: t("The page was reloaded before the result came"),
  detail: t("the page no longer has the file"),
};
/** The problem of a file that is not read; `kind`: what it is, if that is known. */
export function noImage(kind) {
  if (kind?.is_read) {
    return {
      code: "metadata_kept",
      status: 415,
      title: t("The metadata cannot be removed"),
      detail: t("this is {kind}, whose metadata this page cannot remove; the file was not sent",
        { kind: kind.name }),
    };
  }
  return {
    code: "unsupported_media",
    status: 415,
    title: t("The media type is not supported"),
    detail: kind === undefined
      ? t("expected a JPEG, PNG or WebP image; the file was not sent")
      : t("expected a JPEG, PNG or WebP image; this is {kind}: {advice}; the file was not sent",
        { kind: kind.name, advice: kind.advice }),
  };
}
export const PAGE_FAILED = {
  code: "page_failed",
  title: t("The page failed"),
  detail: t("the response could not be displayed"),
};
export const NOT_ASKED = {
  code: "not_asked",
  title: t("Not assessed"),
  detail: t("it was saved before its result"),
};

const ADVICE = {
  unreachable: t("Retry when the server is available again; the image is still on this page."),
  upload_failed: t("Retry. If the problem persists, use a smaller file."),
  timed_out: t("Retry. If the problem persists, contact the operator of the server."),
  not_authenticated: t("Enter a key above; the image is then sent again."),
  body_too_large: t("Export a smaller image, or a JPEG file, and add it again."),
  upload_too_slow: t("Retry on a faster connection, or with a smaller file."),
  unsupported_media: t("Export the image as JPEG, PNG or WebP and add it again."),
  metadata_kept: t("Switch off “Remove metadata from the files”, and add the file again."),
  invalid_upload: t("Export or take the image again and add it."),
  unreadable_file: t("Add the file again."),
  file_gone: t("Add the file again."),
  unusable_image: t("A damaged, animated, very small or very large image cannot be used. Export or take the image again and add it."),
  quota_exceeded: t("The rate limit of this key is reached."),
  overloaded: t("The server is busy; the image is not the cause."),
  not_ready: t("The server is starting or stopping; the image is not the cause."),
  out_of_memory: t("The server is busy; the image is not the cause."),
  deadline_passed: t("The server is busy; the image is not the cause."),
  audit_unavailable: t("The server requires its audit log; contact the operator."),
};
const OTHER_ADVICE = t("If the problem persists, contact the operator of the server.");

/** What a person can do about a problem. */
export function advice(problem) {
  const known = ADVICE[problem.code] ?? OTHER_ADVICE;
  if (problem.retryAfterS === null) return known;
  return `${known} ${plural(problem.retryAfterS, "Retry in {n} second.", "Retry in {n} seconds.")}`;
}

/** A text with a capital letter and a full stop. */
export function sentence(text) {
  const capitalised = text.charAt(0).toUpperCase() + text.slice(1);
  return capitalised === "" || /[.!?]$/.test(capitalised) ? capitalised : `${capitalised}.`;
}
