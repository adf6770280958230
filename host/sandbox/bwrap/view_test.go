package bwrap_test

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sallyport.dev/host/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	goleak.VerifyTestMain(m)
}

func TestPlainUser(t *testing.T) { sandboxtest.AsPlainUser(t, "^TestSandbox") }

func TestSandboxSees(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "id; cat /proc/self/uid_map; ls -la / /dev /etc /run/sallyport; cat /proc/net/dev; ls -l /proc/self/fd; env; pwd; ps aux; echo hi > made; ls -la; exit 7")
	r := s.Run(t, sandboxtest.Driver(t))
	t.Logf("%s\n%s\n%+v %+v", r.Out, r.Err, r.Exit, r.Facts)
	if r.Exit.Code != 7 || !strings.Contains(r.Out, "uid=1000(agent)") {
		t.Fail()
	}
	if _, err := os.Stat(s.Work + "/made"); err != nil {
		t.Error(err)
	}
}
