// Sends pictures with a client that OpenAPI Generator has generated, and prints a line for each:
// seed, trajectories and label. Then the answers of other operations.
//
// usage: calls URL NO_PICTURE PICTURE...
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"

	openapi "calls/openapi"
)

func opened(path string) *os.File {
	file, err := os.Open(path)
	checked(err)
	return file
}

func checked(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// kinds names the members of unions that were read.
func kinds[T any](results []T) string {
	names := []string{}
	for _, result := range results {
		members := reflect.ValueOf(result)
		for index := 0; index < members.NumField(); index++ {
			if !members.Field(index).IsNil() {
				names = append(names, members.Type().Field(index).Name)
			}
		}
	}
	return strings.Join(names, ",")
}

func main() {
	configuration := openapi.NewConfiguration()
	configuration.Servers = openapi.ServerConfigurations{{URL: os.Args[1]}}
	client := openapi.NewAPIClient(configuration)
	ctx := context.Background()
	noPicture, pictures := os.Args[2], os.Args[3:]
	for _, path := range pictures {
		request := client.PredictionsAPI.Predict(ctx).Mode("stoch").Samples("2")
		derived, _, err := request.File(opened(path)).Execute()
		checked(err)
		repeated, _, err := request.File(opened(path)).Seed(derived.GetSeed()).Execute()
		checked(err)
		equal := reflect.DeepEqual(derived.Probabilities, repeated.Probabilities)
		fmt.Println(repeated.GetSeed(), repeated.GetTrajectories(), repeated.GetLabel(), equal)
	}
	auto, _, err := client.PredictionsAPI.Predict(ctx).Mode("stoch").Samples("auto").
		File(opened(pictures[0])).Execute()
	checked(err)
	fmt.Println("auto", auto.GetLabel())
	batch, _, err := client.PredictionsAPI.PredictBatch(ctx).
		Files([]*os.File{opened(pictures[0]), opened(noPicture)}).Execute()
	checked(err)
	fmt.Println("batch", kinds(batch.GetResults()))
	triaged, _, err := client.TriageAPI.TriageBatch(ctx).Mode("det").
		Files([]*os.File{opened(pictures[0]), opened(noPicture)}).Execute()
	checked(err)
	fmt.Println("triage_batch", kinds(triaged.GetResults()))
	triage, _, err := client.TriageAPI.Triage(ctx).Mode("det").File(opened(pictures[0])).Execute()
	checked(err)
	fmt.Println("triage", triage.Prediction.GetLabel())
	model, _, err := client.ModelsAPI.DescribeModel(ctx, "tiny").Execute()
	checked(err)
	fmt.Println("model", len(model.GetThresholds()))
	card, _, err := client.ModelsAPI.ModelCard(ctx, "tiny").Execute()
	checked(err)
	fmt.Println("card", len(card))
	metrics, _, err := client.OperationsAPI.Scrape(ctx).Execute()
	checked(err)
	fmt.Println("metrics", strings.Contains(metrics, "eulerlora_ready 1"))
	_, response, _ := client.PredictionsAPI.Predict(ctx).Model("other").
		File(opened(pictures[0])).Execute()
	fmt.Println("problem", response.StatusCode)
}
