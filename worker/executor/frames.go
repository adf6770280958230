package executor

import (
	"crypto/sha256"
	"slices"
	"sync/atomic"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
)

// chunkSize is from which on, and in which parts, a body travels in chunks before its outcome.
const chunkSize = 256 << 10

func unsent(id, failure, detail string) *sallyportv1.Outcome {
	return &sallyportv1.Outcome{Intent: id, Transport: sallyportv1.Transport_TRANSPORT_NOT_SENT, Failure: failure, Detail: detail}
}

func keptBytes(o *sallyportv1.Outcome) int { return len(o.GetBody()) + len(o.GetOutput()) }

func outcomeFrame(o *sallyportv1.Outcome) *sallyportv1.WorkerFrame {
	return &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: o}}
}

// outcomeFrames is an outcome, behind the chunks of its body when that is large. The chunks share the body's memory.
func outcomeFrames(o *sallyportv1.Outcome) []*sallyportv1.WorkerFrame {
	body := o.GetBody()
	if len(body) <= chunkSize {
		return []*sallyportv1.WorkerFrame{outcomeFrame(o)}
	}
	digest := sha256.Sum256(body)
	frames := make([]*sallyportv1.WorkerFrame, 0, len(body)/chunkSize+2)
	at := int64(0)
	for part := range slices.Chunk(body, chunkSize) {
		frames = append(frames, &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Chunk{
			Chunk: &sallyportv1.WorkerChunk{Digest: digest[:], Offset: at, Data: part, Size: int64(len(body))},
		}})
		at += int64(len(part))
	}
	last := &sallyportv1.Outcome{
		Intent: o.GetIntent(), Transport: o.GetTransport(), BytesWritten: o.GetBytesWritten(), HttpStatus: o.GetHttpStatus(), Failure: o.GetFailure(),
		ChunkedDigest: digest[:], ChunkedSize: at, Detail: o.GetDetail(), UpstreamSession: o.GetUpstreamSession(), Address: o.GetAddress(),
		Protocol: o.GetProtocol(), Timings: o.GetTimings(), Output: o.GetOutput(), RedactedDigest: o.GetRedactedDigest(), Challenge: o.GetChallenge(),
	}
	return append(frames, outcomeFrame(last))
}

// Stats are counters of a run since its start. Safe for concurrent use.
type Stats struct {
	taken, refused                atomic.Int64
	notSent, sent, answered       atomic.Int64
	bytesWritten, bytesRead       atomic.Int64
	openUS, connectUS, waitUS, us atomic.Int64
}

func (s *Stats) finished(o *sallyportv1.Outcome) {
	switch o.GetTransport() {
	case sallyportv1.Transport_TRANSPORT_ANSWERED:
		s.answered.Add(1)
	case sallyportv1.Transport_TRANSPORT_SENT:
		s.sent.Add(1)
	default:
		s.notSent.Add(1)
	}
	s.bytesWritten.Add(o.GetBytesWritten())
	s.bytesRead.Add(int64(len(o.GetBody())))
	t := o.GetTimings()
	s.openUS.Add(t.GetOpenUs())
	s.connectUS.Add(t.GetConnectUs())
	s.waitUS.Add(t.GetWaitUs())
	s.us.Add(t.GetOpenUs() + t.GetConnectUs() + t.GetWriteUs() + t.GetWaitUs() + t.GetReadUs())
}

// Counters returns the counters by name, as a Health frame carries them; _us are sums of microseconds.
func (x *Executor) Counters() map[string]int64 {
	s := &x.stats
	x.mu.Lock()
	running, kept, keptBytes := x.running, len(x.entries)-x.running, x.keptBytes
	x.mu.Unlock()
	return map[string]int64{
		"intents_taken": s.taken.Load(), "intents_refused": s.refused.Load(), "intents_running": int64(running),
		"outcomes_not_sent": s.notSent.Load(), "outcomes_sent": s.sent.Load(), "outcomes_answered": s.answered.Load(),
		"outcomes_kept": int64(kept), "outcomes_kept_bytes": int64(keptBytes), "bytes_written": s.bytesWritten.Load(), "bytes_read": s.bytesRead.Load(),
		"open_us": s.openUS.Load(), "connect_us": s.connectUS.Load(), "wait_us": s.waitUS.Load(), "worker_us": s.us.Load(),
	}
}
