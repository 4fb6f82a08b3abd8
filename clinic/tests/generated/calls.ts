/* Calls every operation with a client that @hey-api/openapi-ts has generated, and prints as JSON what
 * of each answer shows its type. The compiler checks the types.
 *
 * usage: node calls.js URL PICTURE */

import { client } from "./generated/client.gen";
import * as api from "./generated/sdk.gen";
import type { FhirBundle, Prediction, ProblemDocument, TriageResult } from "./generated/types.gen";

declare const process: { argv: string[] };
declare const require: (name: string) => { readFileSync: (path: string) => Uint8Array<ArrayBuffer> };

const [, , url, picture] = process.argv;
client.setConfig({ baseUrl: url });
const content = require("fs").readFileSync(picture!);
const file = (bytes: Uint8Array<ArrayBuffer> = content) => new File([bytes], "picture.png");
const text = new TextEncoder().encode("no picture");
const path = { name: "tiny" };

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
type Triage = NonNullable<Awaited<ReturnType<typeof api.triage<false>>>["data"]>;
const isExact: Equal<Triage, TriageResult> = true; // no union with the FHIR answer
const kind: FhirBundle["resourceType"] = "Bundle";

async function main(): Promise<void> {
  const predicted = await api.predict({ body: { file: file() }, query: { mode: "stoch", samples: "2" } });
  const prediction: Prediction = predicted.data!;
  const triage = (await api.triage({ body: { file: file() } })).data!;
  const refused = await api.predict({ body: { file: file(text) } });
  const problem: ProblemDocument = refused.error!;
  const unknown = (await api.describeModel({ path: { name: "other" } })).error!;
  const entries = (await api.predictBatch({ body: { files: [file(), file(text)] } })).data!.results;
  const answers = {
    predict: prediction.trajectories,
    predict_batch: entries.map((one) => ("code" in one ? one.code : one.label !== "")),
    embed: (await api.embed({ body: { file: file() } })).data!.embedding.length,
    triage: triage.disposition !== undefined && isExact && kind === "Bundle",
    triage_batch: (await api.triageBatch({ body: { files: [file()] } })).data!.results.length,
    decide: (await api.decide({
      body: { request_id: triage.prediction.request_id, diagnosis: "nv" },
    })).data!.diagnosis,
    triage_policy: (await api.triagePolicy()).data!.dispositions.length,
    list_models: (await api.listModels()).data!.models.map((one) => one.name),
    describe_model: (await api.describeModel({ path })).data!.image_limits.min_side,
    model_card: typeof (await api.modelCard({ path })).data!,
    livez: (await api.livez()).data!.status,
    readyz: (await api.readyz()).data!.status,
    scrape: (await api.scrape()).data!.includes("eulerlora_ready 1"),
    unsupported_media: problem.code,
    unknown_model: unknown.code,
  };
  console.log(JSON.stringify(answers));
}

void main();
