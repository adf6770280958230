package bounds

import (
	"os"
	"path/filepath"
	"testing"
)

// A sandbox has a limit of processors and, on a busy machine, a smaller share than what serves it.
func TestLimitCPU(t *testing.T) {
	for name, c := range map[string]struct {
		h    hierarchy
		want map[string]string
	}{
		"version 2": {hierarchy{v2: true}, map[string]string{"cpu.max": "150000 100000", "cpu.weight": "25"}},
		"version 1": {hierarchy{controllers: []string{"cpu"}}, map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000", "cpu.shares": "256"}},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if !limitCPU(c.h, dir, 1.5) {
			t.Errorf("%s: not limited", name)
		}
		for file, want := range c.want {
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
				t.Errorf("%s: %s is %q, %v; want %q", name, file, got, err, want)
			}
		}
	}
}
