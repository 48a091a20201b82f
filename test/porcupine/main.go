// Judges histories as erlmcp_test_history does, with another checker of linearizability. It reads
// [{"model": ..., "operations": [...]}, ...] and prints one line for each history: true or false,
// or unknown after a minute.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Do     string `json:"do"`
	Result string `json:"result"`
	Began  int64  `json:"began"`
	Ended  *int64 `json:"ended"`
}

type history struct {
	Model      string      `json:"model"`
	Operations []operation `json:"operations"`
}

// What a state gives for an operation: its result, and the next state.
type outcome struct{ result, next string }

func same(result, state string) []outcome { return []outcome{{result, state}} }

var models = map[string]func(do, state string) []outcome{
	"session": session, "task": task, "polled_task": polledTask,
}

func session(do, state string) []outcome {
	level, open := strings.CutPrefix(state, "open ")
	switch {
	case do == "open" && state == "none":
		return same("ok", "open info")
	case do == "open":
		return nil
	case !open:
		return same("not_found", state)
	case do == "call":
		return same("ok", state)
	case do == "level":
		return same(level, state)
	case do == "delete":
		return same("ok", "deleted")
	}
	return same("ok", "open "+strings.TrimPrefix(do, "set "))
}

func task(do, state string) []outcome {
	how, finish := strings.CutPrefix(do, "finish ")
	switch {
	case do == "create" && state == "none":
		return same("ok", "running")
	case do == "create":
		return nil
	case do == "get":
		return same(state, state)
	case finish && state == "running":
		return same("ok", "ended "+how)
	case do == "cancel" && state == "running":
		return same("ok", "ended cancelled")
	}
	return same("too_late", state)
}

func polledTask(do, state string) []outcome {
	finished := []outcome{{"completed", "ended completed"}, {"failed", "ended failed"}}
	switch {
	case do == "create" && state == "none":
		return same("ok", "running")
	case do == "create":
		return nil
	case state == "none":
		return same("not_found", state)
	case do == "get" && state == "running":
		return append(finished, outcome{"running", "running"})
	case do == "get" && state == "finished":
		return finished
	case do == "get":
		return same(strings.TrimPrefix(state, "ended "), state)
	case state == "running":
		return []outcome{{"ok", "ended cancelled"}, {"ok", "finished"}, {"too_late", "finished"}}
	}
	return []outcome{{"ok", state}, {"too_late", state}}
}

// An operation without an answer may also have had no effect.
func model(outcomes func(do, state string) []outcome) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{"none"} },
		Step: func(state, input, output interface{}) []interface{} {
			next := []interface{}{}
			if output.(string) == "unknown" {
				next = append(next, state)
			}
			for _, each := range outcomes(input.(string), state.(string)) {
				if output.(string) == "unknown" || output.(string) == each.result {
					next = append(next, each.next)
				}
			}
			return next
		},
		Equal: func(one, other interface{}) bool { return one == other },
	}).ToModel()
}

func main() {
	var histories []history
	if err := json.NewDecoder(os.Stdin).Decode(&histories); err != nil {
		log.Fatal(err)
	}
	for _, each := range histories {
		operations := []porcupine.Operation{}
		for client, one := range each.Operations {
			ended := int64(math.MaxInt64)
			if one.Ended != nil {
				ended = *one.Ended
			}
			operations = append(operations, porcupine.Operation{
				ClientId: client, Input: one.Do, Output: one.Result, Call: one.Began, Return: ended,
			})
		}
		verdict := porcupine.CheckOperationsTimeout(
			model(models[each.Model]), operations, time.Minute)
		fmt.Println(map[porcupine.CheckResult]string{
			porcupine.Ok: "true", porcupine.Illegal: "false", porcupine.Unknown: "unknown"}[verdict])
	}
}
