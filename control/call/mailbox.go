package call

import "sync"

// mailbox is the queue of what others tell a call's driver. Nobody blocks on it, and nothing is dropped: an outcome in it is worth more than the
// memory. Safe for concurrent use.
type mailbox struct {
	mu     sync.Mutex
	items  []any
	closed bool
	ping   chan struct{} // capacity 1
}

func newMailbox() mailbox { return mailbox{ping: make(chan struct{}, 1)} }

// put queues m. It returns false when the driver is gone: the caller then goes by the row.
func (b *mailbox) put(m any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.items = append(b.items, m)
	select {
	case b.ping <- struct{}{}:
	default:
	}
	return true
}

func (b *mailbox) take() (any, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		return nil, false
	}
	m := b.items[0]
	b.items[0] = nil
	b.items = b.items[1:]
	return m, true
}

// close refuses everything further and returns what was not taken.
func (b *mailbox) close() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	rest := b.items
	b.items = nil
	return rest
}

// What a driver is told.
type (
	toldAttach struct{ w *waiter }
	toldCancel struct {
		record string
		why    CancelWhy
	}
	toldWake     struct{} // the row may have changed
	toldPolicy   struct{} // the policy, or the session, may have changed
	toldReady    struct{ Ready }
	toldProgress struct {
		intent string
		Progress
	}
	toldOutcome struct {
		run string
		Outcome
	}
	toldAttested struct {
		intent string
		Attestation
	}
	toldRunUp   struct{ Run }
	toldRunDown struct{ run string }
)
