package journal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// Every word of a failure that this package has is explained: a line that only says "the worker says no more" helps nobody.
func TestEveryFailureIsExplained(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "outcome.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Fail") {
			return true
		}
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		found++
		if sentences[Failure(word)] == "" {
			t.Errorf("%s (%q) has no sentence", spec.Names[0].Name, word)
		}
		return true
	})
	if found != len(sentences) || found < 25 {
		t.Errorf("%d failures in outcome.go, %d sentences", found, len(sentences))
	}
}

func TestBecause(t *testing.T) {
	for _, c := range []struct {
		e      Evidence
		detail string
		want   string
	}{
		{Evidence{Transport: TransportAnswered, Status: 200, Answer: AnswerResult}, "", ""},
		{Evidence{Transport: TransportAnswered, Status: 200, Answer: AnswerIsError}, "", ""},
		{Evidence{Transport: TransportAnswered, Status: 200, Answer: AnswerError, RPCCode: -32000}, "", ""},
		{Evidence{Transport: TransportAnswered, Status: 200, Answer: AnswerError, RPCCode: -32602}, "", "error: the server answered with error -32602"},
		{Evidence{Transport: TransportAnswered, Status: 307, Failure: FailStatus}, "", "status: the server answered with a status (HTTP 307)"},
		{Evidence{Transport: TransportAnswered, Status: 202, Failure: FailNoAnswer}, "", "no_answer: the server took it and gave no answer (HTTP 202)"},
		{Evidence{Transport: TransportSent, Status: 200, Failure: FailJSON}, "duplicate name", "json: what came is not one strict JSON-RPC answer: duplicate name"},
		{Evidence{Transport: TransportNotSent, Failure: FailAddress}, "the address 10.0.0.1 is private", "address: the address may not be reached: the address 10.0.0.1 is private"},
		{Evidence{Transport: TransportAnswered, Status: 201, Answer: AnswerResult}, "", "answer: what came is no answer to a call (HTTP 201)"},
		{Evidence{Transport: TransportSent, Failure: "new_word"}, "", "new_word: the worker says no more"},
		{Evidence{Transport: TransportSent, Failure: FailCut}, "\xff" + strings.Repeat("é", maxBecause), "cut: the answer ended early: ?" + strings.Repeat("é", maxBecause/2-1)},
	} {
		if got := c.e.Because(c.detail); got != c.want {
			t.Errorf("%+v, %.20q:\n got %q\nwant %q", c.e, c.detail, got, c.want)
		}
	}
}
