package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const limit = 15 * time.Second

// report prints one line per check and counts them.
type report struct {
	label          string
	passed, failed int
}

// check says whether the body held within the limit.
func (r *report) check(name string, body func(ctx context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := body(ctx)
	if err == nil {
		r.passed++
		fmt.Printf("ok - %s: %s\n", r.label, name)
		return true
	}
	r.failed++
	why := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Printf("not ok - %s: %s: %.600s\n", r.label, name, why)
	return false
}

func (r *report) end() {
	fmt.Printf("%d passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 || r.passed == 0 {
		os.Exit(1)
	}
}

// wire is the value in the form it has on the wire.
func wire(value any) any {
	bytes, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return decoded(string(bytes))
}

func decoded(text string) any {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return err
	}
	return value
}

// same compares a value with JSON text, both as they are on the wire.
func same(actual any, expected string) error {
	return equal(wire(actual), decoded(expected))
}

func equal(actual, expected any) error {
	if reflect.DeepEqual(actual, expected) {
		return nil
	}
	return fmt.Errorf("got %.300v, expected %.300v", actual, expected)
}

func holds(condition bool, format string, args ...any) error {
	if condition {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func lacks(kind string, have, wanted []string) error {
	has := map[string]bool{}
	for _, name := range have {
		has[name] = true
	}
	for _, name := range wanted {
		if !has[name] {
			return fmt.Errorf("no %s %s among %v", kind, name, have)
		}
	}
	return nil
}

// refused holds when err is a JSON-RPC error of this code, and gives its data.
func refused(code int64, err error) (map[string]any, error) {
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) {
		return nil, fmt.Errorf("expected error %d, got %v", code, err)
	}
	if rpc.Code != code {
		return nil, fmt.Errorf("expected error %d, got %d: %s", code, rpc.Code, rpc.Message)
	}
	var data map[string]any
	_ = json.Unmarshal(rpc.Data, &data)
	return data, nil
}

// within awaits what a channel brings.
func within[T any](ctx context.Context, what string, from <-chan T) (T, error) {
	select {
	case value := <-from:
		return value, nil
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("no %s came", what)
	}
}
