package strictjson

import (
	"slices"
	"testing"
)

func TestSpans(t *testing.T) {
	const text = " { \"a\" : 1 ,\"b\\u0063\":[{\"a\":2}, \"]\" ],\"\":{\"}\":\"\\\"\"}} "
	var names, members, values []string
	for name, at := range Spans([]byte(text)) {
		names = append(names, string(name))
		members = append(members, text[at.Name:at.End])
		values = append(values, text[at.Value:at.End])
	}
	if want := []string{"a", "bc", ""}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if want := []string{`"a" : 1`, `"b\u0063":[{"a":2}, "]" ]`, `"":{"}":"\""}`}; !slices.Equal(members, want) {
		t.Errorf("members %q, want %q", members, want)
	}
	if want := []string{`1`, `[{"a":2}, "]" ]`, `{"}":"\""}`}; !slices.Equal(values, want) {
		t.Errorf("values %q, want %q", values, want)
	}
	var elements []string
	for at := range ElementSpans([]byte(values[1])) {
		elements = append(elements, values[1][at.Value:at.End])
	}
	if want := []string{`{"a":2}`, `"]"`}; !slices.Equal(elements, want) {
		t.Errorf("elements %q, want %q", elements, want)
	}
	for range Spans([]byte(`[1]`)) {
		t.Error("an array has no members")
	}
	for range ElementSpans([]byte(`{"a":1}`)) {
		t.Error("an object has no elements")
	}
	for range Spans([]byte(`{}`)) {
		t.Error("no members")
	}
}
