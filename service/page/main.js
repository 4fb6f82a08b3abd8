/* The page: adds a card for every image and requests its result. */

import { Card } from "./card.js";
import { Controls } from "./controls.js";
import { byId, html } from "./dom.js";
import { acceptFiles } from "./intake.js";
import { KeyForm } from "./key_form.js";
import { showModel } from "./model_dialog.js";
import { updateOverview } from "./overview.js";
import { Problem, sentence } from "./problems.js";
import { taskQueue } from "./queue.js";
import { Service } from "./service.js";
import { showShiftNotice } from "./shift.js";

const CONCURRENT_REQUESTS = 2;
const MAX_RETRIES = 5;
const MAX_RETRY_DELAY_S = 10;
const MULTIPART_BYTES = 1024; // size of the form around the file
const WARNING = document.querySelector(".colophon .warning").textContent;

const service = new Service();
const enqueue = taskQueue(CONCURRENT_REQUESTS);
const cards = [];
const controllers = new Map(); // card -> AbortController of its pending request
const modelsWithoutPolicy = new Set(); // models that the triage policy does not apply to
let policyProblem = "";
let models = [];

const controls = new Controls(() => {
  cards.forEach(submit);
  updateShiftNotice();
});
const keyForm = new KeyForm(async (key) => {
  service.key = key;
  await loadModels();
  cards.filter((card) => card.problem?.code === "not_authenticated").forEach(submit);
});

/** Loads the served models. Throws Problem. */
async function loadModels() {
  models = await service.models();
  controls.setModels(models);
  byId("trouble").textContent = "";
  showShiftNotice(models.find(({ name }) => name === controls.options().model));
}

function add(files) {
  const added = files.map((file) => new Card(file, WARNING, { retry: submit, remove }));
  for (const card of added) {
    cards.push(card);
    byId("cards").append(card.element);
    submit(card);
  }
  document.body.classList.toggle("has-cards", cards.length > 0);
}

function remove(card) {
  controllers.get(card)?.abort();
  controllers.delete(card);
  const index = cards.indexOf(card);
  cards.splice(index, 1);
  card.close();
  const next = cards[Math.min(index, cards.length - 1)];
  (next?.title ?? byId("choose")).focus();
  document.body.classList.toggle("has-cards", cards.length > 0);
  update();
  announce(`${card.name} is removed.`);
}

/** Requests a result for the card's image with the current options; cancels an earlier request. */
function submit(card) {
  controllers.get(card)?.abort();
  const controller = new AbortController();
  controllers.set(card, controller);
  card.showQueued();
  update();
  enqueue(async () => {
    if (controller.signal.aborted) return;
    card.showRunning();
    try {
      const result = await resultWithRetries(card, controller.signal);
      if (controller.signal.aborted) return;
      card.showResult(result, descriptionsOf(result.prediction.model));
    } catch (error) {
      if (controller.signal.aborted) return;
      card.showProblem(asProblem(error));
    }
    controllers.delete(card);
    update();
    announce(card.announcement());
    if (controllers.size === 0) updateShiftNotice();
  });
}

/** Returns the result for a card; repeats the request after Retry-After while overloaded. */
async function resultWithRetries(card, signal) {
  for (let retries = 0; ; retries += 1) {
    try {
      return await resultOf(card.file, signal);
    } catch (error) {
      const delayS = error.code === "overloaded" ? error.retryAfterS : null;
      if (delayS === null || delayS > MAX_RETRY_DELAY_S || retries === MAX_RETRIES) throw error;
      card.showRetryIn(delayS);
      await new Promise((resolve) => setTimeout(resolve, 1000 * delayS));
      signal.throwIfAborted();
      card.showRunning();
    }
  }
}

async function resultOf(file, signal) {
  if (models.length === 0) await loadModels();
  const options = controls.options();
  const maxBytes = models.find(({ name }) => name === options.model).max_body_bytes;
  if (file.size + MULTIPART_BYTES > maxBytes) {
    throw new Problem({
      code: "body_too_large",
      title: "The image file is too large",
      detail: `expected at most ${maxBytes.toLocaleString("en")} bytes, got ` +
        file.size.toLocaleString("en"),
    });
  }
  if (!modelsWithoutPolicy.has(options.model)) {
    try {
      return await service.triage(file, options, signal);
    } catch (error) {
      if (error.code !== "policy_not_applicable") throw error;
      modelsWithoutPolicy.add(options.model);
      policyProblem = error.detail;
    }
  }
  const prediction = await service.predict(file, options, signal);
  return {
    disposition: null, policyProblem, prediction, quality: null, policy: null, malignant: null,
  };
}

function asProblem(error) {
  if (!(error instanceof Problem)) {
    console.error(error);
    return new Problem({
      code: "page_failed",
      title: "The page failed",
      detail: "the response could not be displayed",
    });
  }
  if (error.code === "not_authenticated") keyForm.show(service.key !== null);
  return error;
}

function descriptionsOf(name) {
  const { classes } = models.find((model) => model.name === name);
  return new Map(classes.map(({ name, description }) => [name, description]));
}

function update() {
  updateOverview(cards, () => cards.filter((card) => card.problem !== null).forEach(submit));
}

function announce(text) {
  byId("announcements").append(html("p", {}, text));
}

/** Requests the state of the shift monitor of the selected model. */
async function updateShiftNotice() {
  if (models.length === 0) return;
  try {
    showShiftNotice(await service.model(controls.options().model));
  } catch (error) {
    if (!(error instanceof Problem)) throw error; // the next image shows the server's problems
  }
}

async function showSelectedModel() {
  try {
    if (models.length === 0) await loadModels();
    const { model } = controls.options();
    showModel(await service.model(model), WARNING);
  } catch (error) {
    showGlobalProblem(asProblem(error));
  }
}

/** Shows a problem that belongs to no image. */
function showGlobalProblem(problem) {
  if (problem.code === "not_authenticated") return; // the key form shows it
  byId("trouble").textContent = `${problem.title}: ${sentence(problem.detail)}`;
}

acceptFiles(add);
byId("about").addEventListener("click", showSelectedModel);
addEventListener("pagehide", () => cards.forEach((card) => card.close()));
loadModels().catch((error) => showGlobalProblem(asProblem(error)));
