package call

import (
	"sync"
	"time"

	"sallyport.dev/control/journal"
)

// publishLag is how long a published result may stay unacknowledged before the journal says that it was published. A result that is read sooner, as
// nearly all are, costs one write for both.
const publishLag = time.Second

// publications are results that were handed to a host and not acknowledged yet.
type publications struct {
	mu    sync.Mutex
	queue []publication
	wake  chan struct{} // capacity 1: the queue is no longer empty
}

type publication struct {
	s      *sessionState
	record string
	call   string
	at     time.Time
}

func (q *publications) add(p publication) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, p)
	if len(q.queue) == 1 {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// due takes what was published before, and says when to look again; zero when nothing is left.
func (q *publications) due(before time.Time) (due []publication, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.queue) && !q.queue[n].at.After(before) {
		n++
	}
	due = q.queue[:n:n]
	q.queue = q.queue[n:]
	if len(q.queue) == 0 {
		q.queue = nil
		return due, time.Time{}
	}
	return due, q.queue[0].at.Add(publishLag)
}

// publish writes which of them are still unread.
func (p *Pipeline) publish(due []publication) {
	var all []Delivered
	for _, d := range due {
		if d.s == nil || d.s.unread(d.record) {
			all = append(all, Delivered{Call: d.call, Delivery: journal.DeliveryPublished})
		}
	}
	if len(all) > 0 {
		p.cfg.Store.Deliver(all...)
	}
}

// keepPublished runs until the pipeline stops; then it writes what is left.
func (p *Pipeline) keepPublished() {
	timer := time.NewTimer(publishLag)
	defer timer.Stop()
	for {
		select {
		case <-p.published.wake:
			timer.Reset(publishLag)
			continue
		case <-timer.C:
		case <-p.life.Done():
			due, _ := p.published.due(time.Now())
			p.publish(due)
			return
		}
		due, next := p.published.due(time.Now().Add(-publishLag))
		p.publish(due)
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}
