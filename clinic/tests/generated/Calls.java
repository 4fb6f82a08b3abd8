/* Sends pictures with a client that OpenAPI Generator has generated, and prints a line for each:
 * seed, trajectories and label. Then the answers of other operations.
 *
 * usage: java Calls URL NO_PICTURE PICTURE... */

import java.io.File;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.ModelsApi;
import org.openapitools.client.api.OperationsApi;
import org.openapitools.client.api.PredictionsApi;
import org.openapitools.client.api.TriageApi;
import org.openapitools.client.model.AbstractOpenApiSchema;
import org.openapitools.client.model.Prediction;

public class Calls {
    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        PredictionsApi predictions = new PredictionsApi(client);
        List<File> pictures = Arrays.stream(arguments).skip(2).map(File::new).toList();
        for (File picture : pictures) {
            Prediction derived =
                    predictions.predict(picture, "stoch", "2", null, null, null, null, null);
            Prediction repeated =
                    predictions.predict(
                            picture, "stoch", "2", null, derived.getSeed(), null, null, null);
            System.out.println(
                    repeated.getSeed()
                            + " " + repeated.getTrajectories()
                            + " " + repeated.getLabel()
                            + " " + derived.getProbabilities().equals(repeated.getProbabilities()));
        }
        File first = pictures.get(0);
        Prediction auto =
                predictions.predict(first, "stoch", "auto", null, null, null, null, null);
        System.out.println("auto " + auto.getLabel());
        List<File> files = List.of(first, new File(arguments[1]));
        System.out.println(
                "batch "
                        + kinds(
                                predictions
                                        .predictBatch(
                                                files, null, null, null, null, null, null, null)
                                        .getResults()));
        TriageApi triage = new TriageApi(client);
        System.out.println(
                "triage_batch "
                        + kinds(
                                triage.triageBatch(
                                                files, "det", null, null, null, null, null, null,
                                                null)
                                        .getResults()));
        System.out.println(
                "triage "
                        + triage.triage(first, "det", null, null, null, null, null, null)
                                .getPrediction()
                                .getLabel());
        System.out.println(
                "model " + new ModelsApi(client).describeModel("tiny").getThresholds().size());
        System.out.println("card " + new ModelsApi(client).modelCard("tiny").length());
        System.out.println(
                "metrics " + new OperationsApi(client).scrape().contains("eulerlora_ready 1"));
        try {
            predictions.predict(first, null, null, null, null, "other", null, null);
        } catch (ApiException problem) {
            System.out.println("problem " + problem.getCode());
        }
    }

    private static String kinds(List<? extends AbstractOpenApiSchema> results) {
        return results.stream()
                .map(result -> result.getActualInstance().getClass().getSimpleName())
                .collect(Collectors.joining(","));
    }
}
