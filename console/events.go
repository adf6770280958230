package console

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

// beat keeps a stream through proxies, and tells a script that slept whether it is still there.
const beat = 15 * time.Second

// events streams that something changed, never what: the page then asks again and gets what is true by then. So nothing is lost with an event,
// whatever slept, broke or restarted meanwhile.
func (c *console) events(w http.ResponseWriter, r *http.Request) error {
	var kinds []string
	for _, k := range strings.Split(r.URL.Query().Get("kinds"), " ") {
		if k != "" {
			kinds = append(kinds, k)
		}
	}
	stream, err := c.api.Watch(r.Context(), &sallyportv1.WatchRequest{Kinds: kinds})
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stream.Receive(); err != nil { // that it watches
		return err
	}
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if _, err := fmt.Fprint(w, "retry: 1000\nevent: watching\ndata: 1\n\n"); err != nil || out.Flush() != nil {
		return nil //nolint:nilerr // the browser left
	}
	changed, over := make(chan string), make(chan struct{})
	go func() {
		defer close(over)
		for {
			e, err := stream.Receive()
			if err != nil {
				return
			}
			select {
			case changed <- e.GetKind():
			case <-r.Context().Done():
				return
			}
		}
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		line := ": beat\n\n"
		select {
		case <-over:
			return nil
		case <-r.Context().Done():
			<-over
			return nil
		case kind := <-changed:
			line = "event: changed\ndata: " + strings.Map(word, kind) + "\n\n"
		case <-tick.C:
		}
		if _, err := fmt.Fprint(w, line); err != nil || out.Flush() != nil {
			return nil //nolint:nilerr // the browser left
		}
	}
}

func word(r rune) rune {
	if r >= 'a' && r <= 'z' || r == '_' {
		return r
	}
	return -1
}
