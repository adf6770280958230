package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

// Config is what a [Client] needs.
type Config struct {
	Conn      grpc.ClientConnInterface // to control, with this host's identity
	Build     string
	Protected int32 // version of protected calls: control must have the same
	Log       *slog.Logger
}

// Times of a client.
const (
	welcomeWithin = 10 * time.Second
	backoffLeast  = 50 * time.Millisecond
	backoffMost   = 5 * time.Second
	steadyAfter   = 10 * time.Second // a stream that lasted as long starts the backoff anew
)

// Client is a [Link] over gRPC.
type Client struct {
	cfg    Config
	client sallyportv1.HostClient
}

// New returns a client. It connects when it runs.
func New(cfg Config) *Client {
	return &Client{cfg: cfg, client: sallyportv1.NewHostClient(cfg.Conn)}
}

// Run implements [Link].
func (c *Client) Run(ctx context.Context, p Peer) error {
	pause := backoffLeast
	for {
		start := time.Now()
		err := c.stream(ctx, p)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(start) >= steadyAfter {
			pause = backoffLeast
		}
		c.cfg.Log.Warn("no link to control", "err", err, "retry_in", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, backoffMost)
	}
}

// stream is one stream from hello to its end.
func (c *Client) stream(ctx context.Context, p Peer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, rest, welcome, err := c.greet(ctx, cancel, p)
	if err != nil {
		return err
	}
	p.Up(welcome)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			frames, err := p.Next(ctx)
			if err != nil {
				return err
			}
			if err := stream.Send(&sallyportv1.HostFrames{Frames: frames}); err != nil {
				return readable(err)
			}
		}
	})
	group.Go(func() error {
		frames := rest
		for {
			if len(frames) > 0 {
				if err := p.Receive(frames); err != nil {
					return err
				}
			}
			batch, err := stream.Recv()
			if err != nil {
				return readable(err)
			}
			frames = batch.GetFrames()
		}
	})
	// Either ends the other: by the context that Next waits on, or by the stream's.
	go func() {
		<-ctx.Done()
		cancel()
	}()
	err = group.Wait()
	cancel()
	p.Down(err)
	return err
}

// greet opens a stream, says hello and waits for the welcome, and returns it with the frames that came with it.
func (c *Client) greet(ctx context.Context, cancel func(), p Peer) (sallyportv1.Host_LinkClient, []*sallyportv1.ControlFrame, *sallyportv1.Welcome, error) {
	late := time.AfterFunc(welcomeWithin, cancel)
	defer late.Stop()
	stream, err := c.client.Link(ctx)
	if err != nil {
		return nil, nil, nil, readable(err)
	}
	hello := p.Hello()
	hello.Build, hello.Wire, hello.ProtectedVersion = c.cfg.Build, Wire, c.cfg.Protected
	err = stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Hello{Hello: hello}}}})
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF, Recv says why
		return nil, nil, nil, readable(err)
	}
	batch, err := stream.Recv()
	if err != nil {
		return nil, nil, nil, readable(err)
	}
	welcome, rest, err := CheckWelcome(batch.GetFrames(), c.cfg.Protected)
	return stream, rest, welcome, err
}

// CheckWelcome wants a welcome as the first of a stream's frames, from a control that this host may speak to, and returns it and the rest.
// Errors: [errs.Invalid]; [errs.TooOld], [errs.ProtectedNumber] where one side must be upgraded.
func CheckWelcome(frames []*sallyportv1.ControlFrame, protected int32) (*sallyportv1.Welcome, []*sallyportv1.ControlFrame, error) {
	if len(frames) == 0 || frames[0].GetWelcome() == nil {
		return nil, nil, errs.New(errs.Invalid, "control did not begin with a welcome")
	}
	w := frames[0].GetWelcome()
	switch {
	case w.GetWire() < Wire:
		return nil, nil, errs.Newf(errs.TooOld, "control speaks version %d of the link, this host %d: upgrade control first", w.GetWire(), Wire)
	case w.GetProtectedVersion() != protected:
		return nil, nil, errs.Newf(errs.ProtectedNumber, "control speaks protected version %d, this host %d: both must be the same", w.GetProtectedVersion(), protected)
	}
	return w, frames[1:], nil
}

// readable turns the end of a stream into an error for people and keeps gRPC's as the detail.
func readable(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.Wrap(errs.Unreachable, "control ended the link", err)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return errs.Wrap(errs.Unreachable, "control cannot be reached", err)
	case codes.PermissionDenied, codes.Unauthenticated:
		return errs.Wrap(errs.NotAllowed, "control refuses this host's identity", err)
	case codes.FailedPrecondition:
		return errs.Wrap(errs.ProtectedNumber, "control refuses this host's version: "+status.Convert(err).Message(), err)
	default:
		return errs.Wrap(errs.Unavailable, "the link to control failed", err)
	}
}

var _ Link = (*Client)(nil)
