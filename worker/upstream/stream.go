package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"sallyport.dev/relay/strictjson"
)

var streams = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

// readStream reads an event stream until our response came.
func (k *conn) readStream(ctx context.Context, x *exchange, r *reply, body io.Reader) {
	in := streams.Get().(*bufio.Reader)
	in.Reset(body)
	defer func() {
		in.Reset(nil)
		streams.Put(in)
	}()
	most := x.result + envelope
	events := eventReader{in: in, most: most, total: 2*most + streamSlack, grow: func() error {
		if x.place.take(ctx, k, x.deadline, most) != "" {
			return errNoRoom
		}
		return nil
	}}
	pace := pacer{forward: x.progress, secret: x.secret}
	asked := 0
	for {
		data, err := events.next()
		switch {
		case errors.Is(err, io.EOF):
			r.failure = FailStream
			return
		case errors.Is(err, errNoRoom):
			r.failure = FailRoom
			return
		case err != nil && !isTransport(err):
			r.failure = FailHTTP
			return
		case err != nil:
			r.failure = k.readFailure(err, true)
			return
		}
		list := [][]byte{data}
		if x.revision == batchedIn && data[0] == '[' {
			if list, err = strictjson.Array(data, nil); err != nil {
				r.failure, r.detail = FailJSON, err.Error()
				return
			}
		}
		for _, raw := range list {
			m, err := parseMessage(raw)
			switch {
			case err != nil:
				r.failure, r.detail = FailJSON, err.Error()
				return
			case m.isResponse() && m.answers(x.id):
				r.message = m
				return
			case m.isResponse():
				r.failure = FailID
				return
			case m.id == nil:
				if x.token != "" && m.method == "notifications/progress" && text(m.params, "progressToken") == x.token {
					pace.pass(m.params)
				}
			case x.request != nil && ctx.Err() == nil:
				if asked++; asked > maxQuestions {
					r.failure, r.detail = FailOversize, "too many requests of the server"
					return
				}
				x.request(m, k.src.pause())
			}
		}
	}
}

var errNoRoom = errors.New("no memory for a long answer in time")

// maxQuestions bounds what a server may ask on one stream.
const maxQuestions = 32

// pacer drops progress that comes faster than anybody reads.
type pacer struct {
	forward func(Progress)
	secret  Credential
	last    time.Time
}

const (
	progressEvery = 100 * time.Millisecond
	progressText  = 1 << 10
)

func (p *pacer) pass(params []byte) {
	now := time.Now()
	if p.forward == nil || now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	note := p.secret.scrub(text(params, "message"))
	if len(note) > progressText {
		note = string(bytes.ToValidUTF8([]byte(note[:progressText]), nil))
	}
	p.forward(Progress{Progress: number(params, "progress"), Total: number(params, "total"), Message: note})
}
