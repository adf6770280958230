package bounds

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/host/sandbox"
)

func TestDiscover(t *testing.T) {
	cases := []struct {
		name, mountinfo, cgroup string
		want                    []hierarchy
		parents                 [][]string
	}{
		{
			"version 2", "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n",
			[]hierarchy{{mount: "/sys/fs/cgroup", own: "user.slice/user-1000.slice/user@1000.service/app.slice/x.scope", v2: true}},
			[][]string{{"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice", "/sys/fs/cgroup"}},
		},
		{
			"a container's own root", "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/abc\n",
			[]hierarchy{{mount: "/sys/fs/cgroup", v2: true}},
			[][]string{{"/sys/fs/cgroup"}},
		},
		{
			"hybrid", "40 39 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 39 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"42 39 0:32 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n43 39 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"5:cpu,cpuacct:/a\n4:memory:/b/c\n3:devices:/d\n1:name=systemd:/e\n0::/f\n",
			[]hierarchy{
				{mount: "/sys/fs/cgroup/memory", own: "b/c", controllers: []string{"memory"}},
				{mount: "/sys/fs/cgroup/cpu,cpuacct", own: "a", controllers: []string{"cpu"}},
				{mount: "/sys/fs/cgroup/unified", own: "f", v2: true},
			},
			[][]string{{"/sys/fs/cgroup/memory/b/c"}, {"/sys/fs/cgroup/cpu,cpuacct/a"}, {"/sys/fs/cgroup/unified"}},
		},
		{"nothing", "22 27 0:21 / /proc rw - proc proc rw\nbroken line\n", "", nil, nil},
		{
			"a space in the path", `30 24 0:26 / /mnt/my\040groups rw - cgroup2 cgroup2 rw` + "\n", "0::/\nodd\n",
			[]hierarchy{{mount: "/mnt/my groups", v2: true}},
			[][]string{{"/mnt/my groups"}},
		},
	}
	for _, c := range cases {
		got := discover([]byte(c.mountinfo), []byte(c.cgroup))
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", c.name, got)
			continue
		}
		for i, h := range got {
			if p := h.parents(); !reflect.DeepEqual(p[:1], c.parents[i][:1]) {
				t.Errorf("%s: parents %v", c.name, p)
			}
		}
	}
}

// A group of this machine, where one can be made: what is in it is killed, forks and all, and the group is gone afterwards. A plain user
// gets no group, and that is no error.
func TestGroup(t *testing.T) {
	g, levels := Make("sallyport-test-group", sandbox.Bounds{Memory: 1 << 30, PIDs: 50, CPU: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; while :; do sleep 100 & sleep 0.01; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if pids, err := g.Processes(); err != nil || (len(pids) == 0) != (len(g.Dirs()) == 0) {
		t.Errorf("%v %v in %v", pids, err, g.Dirs())
	}
	if len(g.Dirs()) == 0 {
		if levels.Memory != sandbox.None || levels.PIDs != sandbox.None {
			t.Errorf("%+v without a group", levels)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	again := Attach(g.Dirs())
	if err := again.Kill(ctx); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if pids, err := g.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("left: %v %v", pids, err)
	}
	for range 2 {
		if err := again.Remove(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range g.Dirs() {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", dir, err)
		}
		if filepath.Base(dir) != "sallyport-test-group" {
			t.Errorf("odd name: %s", dir)
		}
	}
}

func TestProbe(t *testing.T) {
	levels, err := Probe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []sandbox.Level{levels.Memory, levels.PIDs, levels.CPU} {
		if l != sandbox.Cgroup && l != sandbox.None {
			t.Errorf("%+v", levels)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
