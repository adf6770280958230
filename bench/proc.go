package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the processor time that a process has used, over all its threads that live: those of our programs do not end.
func cpuTime(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(tasks) == 0 {
		err = fmt.Errorf("process %d is gone", pid)
	}
	var sum int64
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // the thread ended
		}
		on, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(on, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum), err
}

// memory is one line of a process's status, in KiB: VmRSS, VmHWM (its peak), RssAnon.
func memory(pid int, what string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, what+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, what)
}

// resetPeak makes a process's peak of memory what it uses now.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// loadAverage is that of the last minute, and how many of the processors' time was busy over a span is [busy].
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	one, _, _ := strings.Cut(string(b), " ")
	n, _ := strconv.ParseFloat(one, 64)
	return n
}

// ticks returns the machine's busy and total processor time since boot, in clock ticks.
func ticks() (busy, total float64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseFloat(f, 64)
		if total += n; i != 3 && i != 4 { // idle, waiting for a disk
			busy += n
		}
	}
	return busy, total
}
