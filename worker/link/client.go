package link

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	links "sallyport.dev/identity/link"
	"sallyport.dev/intent"
	"sallyport.dev/worker/executor"
)

// Wire is the number of the wire formats that this build speaks.
const Wire = 1

// Times of a Link.
const (
	firstBackoff  = 100 * time.Millisecond
	mostBackoff   = 5 * time.Second
	refusedPause  = 30 * time.Second // control refuses this worker: only a person can change that
	welcomeWithin = 10 * time.Second
	healthEvery   = 5 * time.Second
)

// Executor is what jobs are handed to. Its methods do not block. [executor.Executor] implements it.
type Executor interface {
	Attach(l executor.Link)
	Detach(l executor.Link)
	Intent(l executor.Link, job *sallyportv1.IntentJob)
	Go(l executor.Link, id string)
	Attest(l executor.Link, id string)
	CloseIntent(l executor.Link, id, reason string)
	Ack(id string)
}

// Config is one Link.
type Config struct {
	Control   spiffeid.ID // the one node that may answer
	Address   string      // host:port, or unix:PATH
	Source    *identity.Source
	Executor  Executor
	Ring      *intent.Ring
	HighWater *HighWater
	Hello     func() *sallyportv1.WorkerHello // without the high water, which is added
	Health    func() *sallyportv1.Health
	Log       *slog.Logger
}

// Run keeps the Link up until ctx ends, and returns its error. Errors: [errs.Invalid] for the address.
func Run(ctx context.Context, cfg Config) error {
	cc, err := links.Dial(cfg.Source, cfg.Control, cfg.Address)
	if err != nil {
		return err
	}
	defer func() { _ = cc.Close() }()
	client := sallyportv1.NewWorkerClient(cc)
	backoff := firstBackoff
	for {
		welcomed, err := once(ctx, cfg, client)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if welcomed {
			backoff = firstBackoff
		}
		wait := backoff/2 + rand.N(backoff/2)
		backoff = min(2*backoff, mostBackoff)
		switch status.Code(err) {
		case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
			wait = refusedPause
			cfg.Log.Error("control refuses this worker", "control", cfg.Control.String(), "why", status.Convert(err).Message(), "again_in", wait)
		default:
			cfg.Log.Warn("link to control lost", "control", cfg.Control.String(), "address", cfg.Address, "err", err, "again_in", wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		// Our own waiting is the backoff; gRPC's would come on top of it.
		cc.ResetConnectBackoff()
	}
}

// connection is one life of a Link. It implements [executor.Link].
type connection struct {
	key    intent.LinkKey
	out    *outbox
	chunks chunks
}

// Push implements [executor.Link].
func (c *connection) Push(frames ...*sallyportv1.WorkerFrame) bool { return c.out.push(frames...) }

// PushBody implements [executor.Link].
func (c *connection) PushBody(frames ...*sallyportv1.WorkerFrame) bool {
	if len(frames) == 1 {
		return c.out.push(frames...)
	}
	return c.out.pushLane(frames...)
}

// VerifyMAC implements [executor.Link].
func (c *connection) VerifyMAC(encoded, mac []byte) bool { return c.key.VerifyMAC(encoded, mac) }

// once lives one Link, from Hello to its end. welcomed says that control took it.
func once(ctx context.Context, cfg Config, client sallyportv1.WorkerClient) (welcomed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A control node that takes the connection and says nothing must not hold the Link for ever.
	late := time.AfterFunc(welcomeWithin, cancel)
	defer late.Stop()
	stream, err := client.Link(ctx)
	if err != nil {
		return false, err
	}
	hello := cfg.Hello()
	hello.HighWater = cfg.HighWater.Seen()
	if err := send(stream, &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Hello{Hello: hello}}); err != nil {
		return false, err
	}
	first, err := stream.Recv()
	if err != nil {
		return false, err
	}
	late.Stop()
	welcome, err := checkWelcome(first)
	if err != nil {
		return false, err
	}
	other, err := links.OtherEnd(stream.Context())
	if err != nil {
		return false, err
	}
	c := &connection{out: newOutbox()}
	if c.key, err = intent.ExportLinkKey(other.State); err != nil {
		return false, err
	}
	cfg.Log.Info("linked to control", "control", other.ID.String(), "node", welcome.GetNode(), "build", welcome.GetBuild())

	var sender sync.WaitGroup
	sender.Go(func() {
		defer cancel()
		for {
			frames, ok := c.out.next(ctx)
			if !ok || stream.Send(&sallyportv1.WorkerFrames{Frames: frames}) != nil {
				return
			}
		}
	})
	sender.Go(func() { beat(ctx, cfg, c) })
	cfg.Executor.Attach(c)
	defer func() {
		c.out.close()
		cfg.Executor.Detach(c)
		cancel()
		sender.Wait()
	}()
	for jobs := first.GetJobs()[1:]; ; {
		for _, j := range jobs {
			if err := c.job(cfg, j); err != nil {
				return true, err
			}
		}
		next, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errs.New(errs.Unreachable, "control ended the link")
			}
			return true, err
		}
		jobs = next.GetJobs()
	}
}

func send(stream grpc.BidiStreamingClient[sallyportv1.WorkerFrames, sallyportv1.Jobs], f *sallyportv1.WorkerFrame) error {
	err := stream.Send(&sallyportv1.WorkerFrames{Frames: []*sallyportv1.WorkerFrame{f}})
	if errors.Is(err, io.EOF) {
		// The stream is over; why, only Recv knows.
		_, err = stream.Recv()
	}
	return err
}

// beat says that the worker lives, and how it is.
func beat(ctx context.Context, cfg Config, c *connection) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.Push(&sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Health{Health: cfg.Health()}})
		}
	}
}

// checkWelcome refuses a control node of another version: wire N and N-1 are spoken, the protected number is never negotiated.
func checkWelcome(first *sallyportv1.Jobs) (*sallyportv1.WorkerWelcome, error) {
	if len(first.GetJobs()) == 0 || first.GetJobs()[0].GetWelcome() == nil {
		return nil, status.Error(codes.InvalidArgument, "control's first job is not its welcome")
	}
	w := first.GetJobs()[0].GetWelcome()
	if w.GetWire() != Wire && w.GetWire() != Wire+1 {
		return nil, status.Errorf(codes.FailedPrecondition, "control speaks wire version %d, this worker %d: upgrade the older side", w.GetWire(), Wire)
	}
	if w.GetProtectedVersion() != intent.Protected {
		return nil, status.Errorf(codes.FailedPrecondition, "control has protected version %d, this worker %d: both must be the same", w.GetProtectedVersion(), intent.Protected)
	}
	return w, nil
}

// job hands one job on. An error ends the Link: control broke the contract.
func (c *connection) job(cfg Config, j *sallyportv1.Job) error {
	x := cfg.Executor
	switch j := j.GetJob().(type) {
	case *sallyportv1.Job_Intent:
		if err := c.join(j.Intent); err != nil {
			return err
		}
		x.Intent(c, j.Intent)
	case *sallyportv1.Job_Go:
		x.Go(c, j.Go.GetIntent())
	case *sallyportv1.Job_Attest:
		x.Attest(c, j.Attest.GetIntent())
	case *sallyportv1.Job_Close:
		x.CloseIntent(c, j.Close.GetIntent(), j.Close.GetReason())
	case *sallyportv1.Job_Ack:
		x.Ack(j.Ack.GetIntent())
	case *sallyportv1.Job_HighWater:
		cfg.HighWater.See(j.HighWater)
	case *sallyportv1.Job_Keys:
		// Keys that do not verify are no reason to end the Link: the ones known stay, and intents under others are refused one by one.
		if err := cfg.Ring.Replace(cfg.Control.String(), nodeKeys(j.Keys), time.Now()); err != nil {
			cfg.Log.Error("control's keys refused", "control", cfg.Control.String(), "err", err)
		}
	case *sallyportv1.Job_Chunk:
		return c.chunks.add(j.Chunk.GetDigest(), j.Chunk.GetOffset(), j.Chunk.GetData())
	case *sallyportv1.Job_Welcome:
		return errs.New(errs.Invalid, "a second welcome on one link")
	default:
		// A newer control's job that this build does not know (wire N-1).
		cfg.Log.Debug("unknown job of control", "control", cfg.Control.String())
	}
	return nil
}

// join puts arguments that came in chunks into their intent, which names their digest.
func (c *connection) join(job *sallyportv1.IntentJob) error {
	if len(job.GetArguments()) > 0 || len(c.chunks.open) == 0 {
		return nil
	}
	// An intent that does not parse names no digest; the executor refuses it, and says why.
	in, _ := intent.Parse(job.GetIntent())
	key, err := hex.DecodeString(in.Arguments)
	if err != nil || len(key) != sha256.Size {
		return err
	}
	job.Arguments, err = c.chunks.take([sha256.Size]byte(key))
	return err
}

func nodeKeys(keys *sallyportv1.Keys) []intent.NodeKey {
	out := make([]intent.NodeKey, 0, len(keys.GetKeys()))
	for _, k := range keys.GetKeys() {
		out = append(out, intent.NodeKey{
			ID: k.GetKeyId(), Public: ed25519.PublicKey(k.GetPublicKey()), NotAfter: time.Unix(k.GetNotAfterUnix(), 0).UTC(), Signature: k.GetSignature(),
		})
	}
	return out
}
