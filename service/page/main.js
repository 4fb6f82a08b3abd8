/* The page: pictures in, cards out. */

import { Card } from "./card.js";
import { Controls } from "./controls.js";
import { byId, html } from "./dom.js";
import { takeIn } from "./intake.js";
import { KeyForm } from "./key_form.js";
import { showModel } from "./model_dialog.js";
import { listInOrder } from "./order.js";
import { Problem, sentence } from "./problems.js";
import { queue } from "./queue.js";
import { Service } from "./service.js";
import { summarise } from "./summary.js";

const AT_ONCE = 2;
const TIMES_PUT_OFF = 5;
const LONGEST_PUT_OFF_S = 10;
const MULTIPART_BYTES = 1024; // what a form adds to the file that it carries
const WARNING = document.querySelector(".colophon .warning").textContent;

const service = new Service();
const enqueue = queue(AT_ONCE);
const cards = [];
const asking = new Map(); // card -> what stops its question
const unfitting = new Set(); // models that the policy does not fit, as the service said
let missing = "";
let models = [];

const controls = new Controls(() => cards.forEach(ask));
const keyForm = new KeyForm(async (key) => {
  service.key = key;
  await meetServer();
  cards.filter((card) => card.problem?.code === "not_authenticated").forEach(ask);
});

/** Learns what is served. Throws Problem. */
async function meetServer() {
  models = await service.models();
  controls.offer(models);
  byId("trouble").textContent = "";
}

function add(files) {
  const added = files.map((file) => new Card(file, WARNING, { retry: ask, remove }));
  for (const card of added) {
    cards.push(card);
    byId("cards").append(card.element);
    ask(card);
  }
  document.body.classList.toggle("has-cards", cards.length > 0);
}

function remove(card) {
  asking.get(card)?.abort();
  asking.delete(card);
  const index = cards.indexOf(card);
  cards.splice(index, 1);
  card.close();
  const next = cards[Math.min(index, cards.length - 1)];
  (next?.title ?? byId("choose")).focus();
  document.body.classList.toggle("has-cards", cards.length > 0);
  changed();
  announce(`${card.name} is removed.`);
}

/** Asks the question that the controls now ask about a card's picture. */
function ask(card) {
  asking.get(card)?.abort();
  const stop = new AbortController();
  asking.set(card, stop);
  card.waits();
  changed();
  enqueue(async () => {
    if (stop.signal.aborted) return;
    card.isAsked();
    try {
      const answer = await patiently(card, stop.signal);
      if (stop.signal.aborted) return;
      card.shows(answer, descriptionsOf(answer.prediction.model));
    } catch (error) {
      if (stop.signal.aborted) return;
      card.tells(asProblem(error));
    }
    asking.delete(card);
    changed();
    announce(card.inWords());
  });
}

/** The answer for a card's picture; a busy server is asked again when it says so. */
async function patiently(card, signal) {
  for (let times = 0; ; times += 1) {
    try {
      return await answerFor(card.file, signal);
    } catch (error) {
      const wait_s = error.code === "overloaded" ? error.retryAfterS : null;
      if (wait_s === null || wait_s > LONGEST_PUT_OFF_S || times === TIMES_PUT_OFF) throw error;
      card.isPutOff(wait_s);
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait_s));
      signal.throwIfAborted();
      card.isAsked();
    }
  }
}

async function answerFor(file, signal) {
  if (models.length === 0) await meetServer();
  const question = controls.question();
  const limit = models.find(({ name }) => name === question.model).max_body_bytes;
  if (file.size + MULTIPART_BYTES > limit) {
    throw new Problem({
      code: "body_too_large",
      title: "The picture’s file is too large",
      detail: `at most ${limit.toLocaleString("en")} bytes are read; it has ` +
        file.size.toLocaleString("en"),
    });
  }
  if (!unfitting.has(question.model)) {
    try {
      return await service.triage(file, question, signal);
    } catch (error) {
      if (error.code !== "policy_not_applicable") throw error;
      unfitting.add(question.model);
      missing = error.detail;
    }
  }
  const prediction = await service.predict(file, question, signal);
  return { disposition: null, missing, prediction, quality: null, policy: null, malignant: null };
}

function asProblem(error) {
  if (!(error instanceof Problem)) {
    console.error(error);
    return new Problem({
      code: "page_failed",
      title: "The page failed",
      detail: "the answer came but could not be shown",
    });
  }
  if (error.code === "not_authenticated") keyForm.asks(service.key !== null);
  return error;
}

function descriptionsOf(name) {
  const { classes } = models.find((model) => model.name === name);
  return new Map(classes.map((each) => [each.name, each.description]));
}

function changed() {
  listInOrder(cards);
  summarise(cards, () => cards.filter((card) => card.problem !== null).forEach(ask));
}

function announce(words) {
  byId("announcements").append(html("p", {}, words));
}

async function showChosenModel() {
  try {
    if (models.length === 0) await meetServer();
    const { model } = controls.question();
    showModel(await service.model(model), WARNING);
  } catch (error) {
    tellGlobally(asProblem(error));
  }
}

/** A problem that belongs to no picture. */
function tellGlobally(problem) {
  if (problem.code === "not_authenticated") return; // the form for the key says it
  byId("trouble").textContent = `${problem.title}: ${sentence(problem.detail)}`;
}

takeIn(add);
byId("about").addEventListener("click", showChosenModel);
addEventListener("pagehide", () => cards.forEach((card) => card.close()));
meetServer().catch((error) => tellGlobally(asProblem(error)));
