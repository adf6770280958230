package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/connection"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/person"
	"sallyport.dev/control/revocation"
	"sallyport.dev/control/session"
	"sallyport.dev/telemetry"
)

// Store is one database that implements every capability's store.
type Store interface {
	call.Store
	call.Journal
	inbox.Store
	grant.Store
	session.Store
	revocation.Store
	connection.Store
	machine.Store
	person.Store
	Exporter
	Backuper
}

// StoresOf is one database as every capability's store.
func StoresOf(s Store) Stores {
	return Stores{Calls: s, Journal: s, Inbox: s, Grants: s, Sessions: s, Revocations: s, Connections: s, Machines: s, People: s, Audit: s, Backup: s}
}

// Metrics of calls. The three facts are labels of their own, never collapsed into "success". No label carries what a guest can choose.
var (
	callSteps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sallyport_call_steps_total", Help: "Committed steps of calls, by the state that they led to.",
	}, []string{"effect", "state"})
	callEnds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sallyport_calls_settled_total", Help: "Dispatched calls that settled: state, and the three facts beside it.",
	}, []string{"effect", "state", "transport", "protocol", "tool"})
	callSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sallyport_call_seconds", Help: "From admission to settling.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
	}, []string{"effect"})
	partSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sallyport_call_part_seconds", Help: "Parts of a call in control: admit, from its record's coming until its intent left; settle, from its outcome's coming until its result left.",
		Buckets: telemetry.FineBuckets,
	}, []string{"part"})
	partAdmit, partSettle = partSeconds.WithLabelValues(string(call.PartAdmit)), partSeconds.WithLabelValues(string(call.PartSettle))
	workerSeconds         = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sallyport_worker_seconds",
		Help:    "Parts of a call at its worker: open (verify, open the credential), connect, write, wait (for the first byte), read; barrier, a write's wait for control between ready and go; and all, from the intent's leaving control to its outcome's return.",
		Buckets: telemetry.FineBuckets,
	}, []string{"part"})
	partAll, partOpen, partConnect = workerSeconds.WithLabelValues("all"), workerSeconds.WithLabelValues("open"), workerSeconds.WithLabelValues("connect")
	partBarrier                    = workerSeconds.WithLabelValues("barrier")
	partWrite, partWait, partRead  = workerSeconds.WithLabelValues("write"), workerSeconds.WithLabelValues("wait"), workerSeconds.WithLabelValues("read")
)

func init() {
	telemetry.Registry.MustRegister(callSteps, callEnds, callSeconds, partSeconds, workerSeconds)
}

// Timed tells metrics how long a part of a call took in control.
func (*Server) Timed(part call.Part, took time.Duration) {
	if part == call.PartAdmit {
		partAdmit.Observe(took.Seconds())
	} else {
		partSettle.Observe(took.Seconds())
	}
}

// workerTook notes where a call's time at its worker went.
func workerTook(since time.Time, t *sallyportv1.Timings) {
	if since.IsZero() || t == nil {
		return // of an earlier Link, or of an older worker
	}
	partAll.Observe(time.Since(since).Seconds())
	micros := func(part prometheus.Observer, us int64) { part.Observe(float64(us) / 1e6) }
	micros(partOpen, t.GetOpenUs())
	micros(partConnect, t.GetConnectUs())
	micros(partWrite, t.GetWriteUs())
	micros(partWait, t.GetWaitUs())
	micros(partRead, t.GetReadUs())
}

// Observe tells metrics and watchers of a committed step. It does not block.
func (s *Server) Observe(c *control.Call, step control.Step) {
	callSteps.WithLabelValues(string(c.Effect), string(step.To)).Inc()
	switch step.To {
	case journal.Answered, journal.Rejected, journal.Failed, journal.Uncertain:
		callEnds.WithLabelValues(string(c.Effect), string(step.To), string(c.Transport), string(c.Protocol), string(c.ToolResult)).Inc()
		if !c.AdmittedAt.IsZero() {
			callSeconds.WithLabelValues(string(c.Effect)).Observe(time.Since(c.AdmittedAt).Seconds())
		}
	}
	kind := "call"
	if step.To == journal.Asking || step.From == journal.Asking {
		kind = "question"
	}
	s.events.publish(Event{Kind: kind, ID: c.ID, State: string(step.To), Detail: c.Connection + "/" + c.Tool, Session: c.Session, Call: c.ID})
}
