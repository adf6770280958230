package linktest

import (
	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/relay"
)

// Bounds of a host's batches.
const (
	maxBatchFrames = 64
	maxBatchBytes  = 4 << 20
)

// receive handles a batch as control does, and reports what a host must never do.
func (c *Control) receive(frames []*sallyportv1.HostFrame) {
	if len(frames) == 0 || len(frames) > maxBatchFrames {
		c.breach("a batch of %d frames", len(frames))
	}
	size := 0
	for _, f := range frames {
		size += len(f.GetCall().GetRecord())
	}
	if size > maxBatchBytes {
		c.breach("a batch of %d bytes", size)
	}
	for _, f := range frames {
		if fresh := c.frame(f); fresh != nil {
			c.mu.Lock()
			onCall := c.onCall
			c.mu.Unlock()
			if onCall != nil {
				onCall(fresh)
			}
		}
	}
}

// frame handles one frame, and returns a call that was not known.
func (c *Control) frame(f *sallyportv1.HostFrame) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.notify()
	switch f := f.GetFrame().(type) {
	case *sallyportv1.HostFrame_Call:
		return c.call(f.Call)
	case *sallyportv1.HostFrame_Attach:
		c.attach(f.Attach)
	case *sallyportv1.HostFrame_Cancel:
		c.cancel(f.Cancel)
	case *sallyportv1.HostFrame_Ack:
		c.ack(f.Ack)
	case *sallyportv1.HostFrame_Gate:
		c.gates[f.Gate.GetSession()] = f.Gate
	case *sallyportv1.HostFrame_Hello:
		c.breach("a second hello")
	case nil:
		c.breach("an empty frame")
	}
	c.received = append(c.received, f)
	return nil
}

// call takes a record; c.mu is held.
func (c *Control) call(f *sallyportv1.HostCall) *Call {
	record, err := relay.ParseCall(f.GetRecord())
	switch {
	case err != nil:
		c.breach("a record that does not parse: %w", err)
		return nil
	case record.Session != f.GetSession() || record.Epoch != f.GetEpoch():
		c.breach("a record of session %s in epoch %d, sent for %s in %d", record.Session, record.Epoch, f.GetSession(), f.GetEpoch())
		return nil
	case f.GetWaitedMs() < 0 || f.GetSeenAtUnixNano() == 0:
		c.breach("a call without its clock")
	}
	digest := relay.Sum(f.GetRecord())
	known := c.calls[key{record.Session, record.ID}]
	if known == nil {
		k := &Call{Session: record.Session, Epoch: record.Epoch, Record: record, Digest: digest, control: c, state: State{Sent: 1, WaitedMS: f.GetWaitedMs()}}
		c.calls[key{record.Session, record.ID}] = k
		return k
	}
	switch {
	case known.Digest != digest:
		c.breach("other bytes for the id %s", record.ID)
	case known.told:
		c.breach("call %s was sent again after the host knew that it is journaled", record.ID)
	case f.GetWaitedMs() < known.state.WaitedMS:
		c.breach("call %s waited %d ms, and less before", record.ID, known.state.WaitedMS)
	}
	known.state.Sent++
	known.state.WaitedMS = f.GetWaitedMs()
	c.again(known)
	return nil
}

// attach answers with what is known; c.mu is held.
func (c *Control) attach(f *sallyportv1.HostAttach) {
	known := c.calls[key{f.GetSession(), f.GetRecordId()}]
	if known == nil {
		c.breach("attach to %s, which never came", f.GetRecordId())
		return
	}
	known.state.Attached++
	c.again(known)
}

// again says what is known of a call once more; c.mu is held.
func (c *Control) again(k *Call) {
	var frames []*sallyportv1.ControlFrame
	if k.journaled {
		frames = append(frames, k.journaledFrame())
	}
	if k.result != nil {
		frames = append(frames, k.resultFrames(k.result, nil)...)
	}
	if len(frames) > 0 && c.stream != nil {
		select {
		case c.stream.send <- frames:
		case <-c.stream.closed:
		}
	}
}

func (c *Control) cancel(f *sallyportv1.HostCancel) {
	known := c.calls[key{f.GetSession(), f.GetRecordId()}]
	if known == nil {
		c.breach("cancel of %s, which never came", f.GetRecordId())
		return
	}
	if f.GetWhy() == sallyportv1.CancelWhy_CANCEL_WHY_UNSPECIFIED {
		c.breach("a cancel without a reason")
	}
	known.state.Cancels = append(known.state.Cancels, f.GetWhy())
}

func (c *Control) ack(f *sallyportv1.HostAck) {
	known := c.calls[key{f.GetSession(), f.GetRecordId()}]
	if known == nil || known.result == nil {
		c.breach("ack of %s, which has no result", f.GetRecordId())
		return
	}
	known.state.Acked++
}
