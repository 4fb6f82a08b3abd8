/* The page: adds an entry to the work list for every image and requests its result. */

import { Analysis } from "./analysis.js";
import { Controls } from "./controls.js";
import { isUndecided } from "./decision.js";
import { byId, html } from "./dom.js";
import { announcement } from "./entry.js";
import { asCsv, asJson, copy, curlLine, describePrint, save } from "./exports.js";
import { acceptFiles } from "./intake.js";
import { Item, itemWith } from "./item.js";
import { KeyForm } from "./key_form.js";
import { plural, t } from "./language.js";
import { showLimits, showModel } from "./model_dialog.js";
import { Problem } from "./problems.js";
import { Service } from "./service.js";
import { showShiftNotice } from "./shift.js";
import { TabStorage, keepClosed } from "./storage.js";
import { namesOf } from "./words.js";
import { WorkList } from "./work_list.js";

const ANNOUNCED_ONE_BY_ONE = 3; // images; a longer list is announced as a whole
const NARROW = "(max-width: 44rem)"; // where new results are below the fold

const service = new Service(askForKey);
const storage = new TabStorage();
const items = [];
let restored = storage.restored(); // until they can be shown
let removed = []; // what Undo brings back
let isNew = false; // images were added whose results are not on the screen yet
const list = new WorkList({ retry: submit, remove, decide, edited: store, grouped: () => update() });
const controls = new Controls(repeatAll, showSubject);
const analysis = new Analysis(service, currentRequest, changed);
const keyForm = new KeyForm(async (key) => {
  service.key = key;
  await loadModels();
  withFile(items.filter(({ problem }) => problem?.code === "not_authenticated")).forEach(submit);
});

/** Asks for a key, and says that the list of an earlier load comes back with it. */
function askForKey() {
  byId("key-kept").hidden = restored.length === 0;
  byId("key-kept-text").textContent =
    plural(restored.length, "{n} image is kept: it comes back when you enter the key.",
      "{n} images are kept: they come back when you enter the key.");
  keyForm.show(service.key !== null);
}

/** Removes the list of an earlier load, which may be that of the person before. */
function forget() {
  restored.forEach((item) => storage.remove(item));
  restored = [];
  askForKey();
  byId("key").focus();
}

/** Loads the served models and the policy. Throws Problem. */
async function loadModels() {
  const [models, policy] = await Promise.all([service.models(), service.policy()]);
  list.setDispositions(policy.dispositions);
  controls.setModels(models, policy);
  byId("trouble").textContent = "";
  items.unshift(...restored);
  restored = [];
  update();
}

/** Shows the page for a model: its words, limits and notices. hasPolicy: for triage. */
function showSubject(model, hasPolicy) {
  document.body.dataset.subject = hasPolicy ? "triage" : "images";
  document.title = `${hasPolicy ? t("Triage of images") : t("Image classification")} · EulerLoRA`;
  showShiftNotice(model);
  showCurl();
  showLimits(model, hasPolicy ? controls.policy : null);
}

async function currentRequest() {
  if (controls.model === undefined) await loadModels();
  const { model, hasPolicy } = controls;
  return { options: controls.options(), model, hasPolicy, strip: byId("strip").checked };
}

function add(files) {
  if (items.length === 0) byId("privacy").open = false; // leaves room for the results
  const lesion = byId("one-lesion").checked && files.length > 1 ? newLesion() : "";
  for (const item of files.map((file) => new Item(file, lesion))) {
    compare(item, [...items]);
    items.push(item);
    submit(item);
  }
  isNew = true;
}

/** A name for a lesion that no item has, and none that Undo brings back. */
function newLesion() {
  const names = new Set([...items, ...removed].map(({ lesion }) => lesion.trim()));
  let number = 1;
  while (names.has(`L${number}`)) number += 1;
  return `L${number}`;
}

/** Says whether one of the other items has the same bytes. */
async function compare(item, others) {
  item.sameAs = await itemWith(item.file, others).catch(() => null); // an unreadable file fails later
  if (item.sameAs === null || !items.includes(item)) return;
  if (items.length <= ANNOUNCED_ONE_BY_ONE) {
    announce(t("{name} is the same file as {other}.", { name: item.name, other: item.sameAs.name }));
  }
  store(item);
  update();
}

function submit(item) {
  analysis.submit(item);
}

/** The items that can be sent: after a reload the page has no files. */
function withFile(some) {
  return some.filter(({ file }) => file !== null);
}

/** Keeps the state of an item for a reload. */
function store(item) {
  const isStored = storage.store(item);
  byId("storage-full").hidden &&= isStored;
}

function repeatAll() {
  withFile(items).forEach(submit);
  showCurl();
  updateShiftNotice();
}

function remove(item) {
  const order = list.sorted(items);
  const next = order[order.indexOf(item) + 1] ?? order[order.indexOf(item) - 1];
  removeAll([item]);
  if (next !== undefined) list.focus(next);
}

/** Records a decision on the result of an item. Returns all that is recorded. Throws Problem. */
function decide({ result }, fields) {
  return service.decide({ request_id: result.prediction.request_id, ...fields });
}

function removeAll(gone) {
  removed = gone;
  gone.forEach(drop);
  update();
  byId("undo-text").textContent =
    plural(gone.length, "{name} is removed.", "{n} images removed.", { name: gone[0].name });
  byId("undo-bar").hidden = false;
  byId("undo").focus();
}

function undo() {
  items.push(...removed);
  removed.forEach(store);
  update();
  removed.filter(({ isPending }) => isPending).forEach(submit); // their requests were cancelled
  byId("undo-bar").hidden = true;
  list.focus(removed[0]);
  removed = [];
}

function drop(item) {
  analysis.cancel(item);
  items.splice(items.indexOf(item), 1);
  list.remove(item);
  storage.remove(item);
}

/** Called after every change of an item's state. */
function changed(item) {
  store(item);
  update();
  if (item.isPending) return;
  const isLast = !items.some(({ isPending }) => isPending);
  if (items.length <= ANNOUNCED_ONE_BY_ONE) announce(announcement(item));
  else if (isLast) announce(list.summary(items));
  if (isLast) {
    updateShiftNotice();
    showNewResults();
  }
}

/** Scrolls to new results, unless a person is reading or typing below them. */
function showNewResults() {
  const isReading = byId("results").contains(document.activeElement);
  if (isNew && !isReading && matchMedia(NARROW).matches) byId("groups").scrollIntoView();
  isNew = false;
}

function update() {
  document.body.classList.toggle("has-items", items.length > 0);
  if (items.length === 0) byId("storage-full").hidden = true;
  byId("results-body").hidden = items.length === 0;
  byId("summary").textContent = list.summary(items);
  showProgress();
  list.update(items, ({ result }) => namesOf(classesOf(result?.prediction.model)));
  const failed = items.filter(({ problem }) => problem?.isTemporary).length;
  byId("retry-all").hidden = failed < 2;
  byId("open-all").hidden = byId("remove-all").hidden = items.length < 2;
  byId("retry-all").textContent = t("Retry {n} without a result", { n: failed });
  const notices = new Set(items.map(({ result }) => result?.policy?.notice).filter(Boolean).map((notice) => t(notice)));
  notices.delete(byId("policy-notice")?.textContent); // at the top of the page
  byId("notices").replaceChildren(
    ...[...notices].map((notice) => html("p", { class: "warning" }, notice)),
  );
}

/** Shows how many of several images are done while some are pending. */
function showProgress() {
  const done = items.filter(({ isPending }) => !isPending).length;
  byId("progress").hidden = done === items.length || items.length < 2;
  byId("progress-bar").max = items.length;
  byId("progress-bar").value = done;
  byId("progress-text").textContent = t("{done} of {all} images done", { done, all: items.length });
}

function classesOf(name) {
  return controls.models.find((model) => model.name === name)?.classes ?? [];
}

function announce(text) {
  byId("announcements").append(html("p", {}, text));
}

/** Requests the state of the shift monitor of the selected model. */
async function updateShiftNotice() {
  if (controls.model === undefined) return;
  try {
    showShiftNotice(await service.model(controls.model.name));
  } catch (error) {
    if (!(error instanceof Problem)) throw error; // the next image shows the server's problems
  }
}

async function showSelectedModel() {
  try {
    if (controls.model === undefined) await loadModels();
    const { model: { name }, hasPolicy, policy } = controls;
    const [details, card] = await Promise.all([service.model(name), service.card(name)]);
    showModel(details, hasPolicy ? policy : null, card);
  } catch (error) {
    showGlobalProblem(error);
  }
}

/** Shows a problem that belongs to no image. */
function showGlobalProblem(error) {
  if (!(error instanceof Problem)) throw error;
  if (error.code === "not_authenticated") return; // the form for a key is shown
  byId("trouble").textContent = error.text;
}

function showCurl() {
  const path = controls.hasPolicy ? "triage" : "predict";
  const options = controls.options();
  byId("curl").textContent = curlLine({ path, options, hasKey: service.key !== null });
}

acceptFiles(add);
keepClosed(byId("privacy"));
byId("about").addEventListener("click", showSelectedModel);
byId("retry-all").addEventListener("click", () => {
  byId("results").focus(); // the button may disappear
  items.filter(({ problem }) => problem?.isTemporary).forEach(submit);
});
byId("remove-all").addEventListener("click", () => removeAll([...items]));
byId("undo").addEventListener("click", undo);
byId("forget").addEventListener("click", forget);
byId("open-all").addEventListener("click", ({ target }) => {
  const isOpen = target.getAttribute("aria-pressed") !== "true";
  target.setAttribute("aria-pressed", String(isOpen));
  list.openAll(isOpen);
});
byId("save-csv").addEventListener("click", () => {
  save(new Blob([asCsv(list.sorted(items))], { type: "text/csv;charset=utf-8" }), "triage.csv");
});
byId("copy-json").addEventListener("click", ({ target }) => {
  copy(asJson(list.sorted(items)), target, "triage.json");
});
byId("copy-curl").addEventListener("click", ({ target }) => {
  copy(byId("curl").textContent, target, "curl.txt");
});
byId("print").addEventListener("click", () => print());
addEventListener("beforeprint", () => {
  list.openLesions(); // closed ones would not be printed
  describePrint(items);
});
addEventListener("beforeunload", (event) => {
  if (list.deciding(items).some(isUndecided)) event.preventDefault(); // the browser asks
});
loadModels().catch(showGlobalProblem);
