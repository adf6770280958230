package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/test/rig"
)

// revokeRow measures from the moment at which an administrator throws a connection's switch to the last call that reached its server, while many
// callers call it all the time. The upstream says when each call came, by this machine's clock.
func (b *bench) revokeRow(ctx context.Context) error {
	w, err := openPath(ctx, b.programs, 4, options{record: true})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	n := b.n(60, 15)
	last := make(sample, 0, n)
	for range n {
		took, err := w.revoke(ctx)
		if err != nil {
			return err
		}
		last = append(last, took)
	}
	b.report.add(row{ID: "revoke_p99_ms", Value: ms(last.p99()), Unit: "ms", N: n, goal: "50", note: "while 16 callers call; the switch's own fsync is part of it"})
	return nil
}

// revoke throws the switch once and returns how long calls still came.
func (w *path) revoke(ctx context.Context) (time.Duration, error) {
	calling, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	flowing := make(chan struct{}, 64)
	for _, s := range w.sessions {
		for range 4 {
			callers.Go(func() {
				for calling.Err() == nil && w.read(s)(calling) == nil {
					select {
					case flowing <- struct{}{}:
					default:
					}
				}
			})
		}
	}
	for range 32 {
		select {
		case <-flowing:
		case <-ctx.Done():
			stop()
			return 0, ctx.Err()
		}
	}
	began := time.Now()
	_, err := w.rig.Operator().Revoke(ctx, &sallyportv1.RevokeRequest{Kind: "connection", Name: "tracker", Reason: "measured"})
	if err == nil {
		callers.Wait() // each is refused
	}
	stop()
	callers.Wait()
	if err != nil {
		return 0, err
	}
	newest, err := newestCall(ctx, w.upstream)
	if err != nil {
		return 0, err
	}
	if _, err := w.rig.Operator().Restore(ctx, &sallyportv1.RestoreRequest{Kind: "connection", Name: "tracker"}); err != nil {
		return 0, err
	}
	if err := w.upstream.Steer(ctx, http.MethodPost, "/reset", nil, nil); err != nil {
		return 0, err
	}
	return max(newest.Sub(began), 0), nil
}

// newestCall is when the upstream saw its last call.
func newestCall(ctx context.Context, u *rig.Upstream) (newest time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.Control+"/requests?tool="+readTool, nil)
	if err != nil {
		return newest, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return newest, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r struct{ At time.Time }
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return newest, err
		}
		if r.At.After(newest) {
			newest = r.At
		}
	}
	return newest, lines.Err()
}
