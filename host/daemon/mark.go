package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"

	"sallyport.dev/api/sallyport/v1"
)

// markFile keeps the newest history of control's store that this host has seen: a store that is older was restored from a copy.
const markFile = "highwater"

type mark struct {
	Incarnation string `json:"incarnation"`
	Counter     int64  `json:"counter"`
	Checkpoint  []byte `json:"checkpoint,omitempty"` // control's newest signed one: what an exported record must contain
}

func readMark(path string) *sallyportv1.HighWater {
	var m mark
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &m) != nil {
		return nil
	}
	return &sallyportv1.HighWater{Incarnation: m.Incarnation, Counter: m.Counter, Checkpoint: m.Checkpoint}
}

func (d *Daemon) highWater() *sallyportv1.HighWater {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mark
}

// remember keeps the highest counter of an incarnation. Another incarnation is control's word that a restore was accepted.
func (d *Daemon) remember(h *sallyportv1.HighWater) {
	if h.GetIncarnation() == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mark != nil && d.mark.GetIncarnation() == h.GetIncarnation() && d.mark.GetCounter() >= h.GetCounter() {
		return
	}
	checkpoint := h.GetCheckpoint()
	if len(checkpoint) == 0 && d.mark != nil {
		checkpoint = d.mark.GetCheckpoint()
	}
	d.mark = &sallyportv1.HighWater{Incarnation: h.GetIncarnation(), Counter: h.GetCounter(), Checkpoint: checkpoint}
	b, err := json.Marshal(mark{h.GetIncarnation(), h.GetCounter(), checkpoint})
	if err != nil {
		return
	}
	path := filepath.Join(d.opts.Dir, markFile)
	if err := os.WriteFile(path+".tmp", b, 0o600); err == nil {
		err = os.Rename(path+".tmp", path)
		if err != nil {
			d.log.Warn("the high water could not be kept", "err", err)
		}
	}
}
