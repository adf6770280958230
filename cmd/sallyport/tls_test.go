package main

import (
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/wire"
)

// cmdMutual starts a server whose certificate an authority of its own signed, and which wants one of its clients; with what belongs to it in files:
// client.pem, old.pem (no longer valid), and sallyport.yaml without and with.yaml with the authority: mutual
func cmdMutual(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: mutual")
	}
	a, err := wire.NewAuthority()
	ts.Check(err)
	serveFixture(ts, mcpserver.Options{TLS: true, Authority: a, Mutual: true})
	for name, until := range map[string]time.Time{"client.pem": time.Now().Add(time.Hour), "old.pem": time.Now().Add(-time.Minute)} {
		pem, err := a.Client("sallyport", until)
		ts.Check(err)
		ts.Check(writeText(ts.MkAbs(name), string(pem)))
	}
	yaml := "version: 1\nconnections:\n  tracker:\n    url: " + ts.Getenv("URL") + "\n    network: {allow: [127.0.0.0/8]}\n"
	ts.Check(writeText(ts.MkAbs("sallyport.yaml"), yaml))
	ca := "        " + strings.ReplaceAll(strings.TrimSpace(string(a.PEM())), "\n", "\n        ") + "\n"
	ts.Check(writeText(ts.MkAbs("with.yaml"), yaml+"    tls:\n      certificate: true\n      ca: |\n"+ca))
}
