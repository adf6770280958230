package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sallyport.dev/errs"
)

// Registry is the process's metrics: its own, and those of the Go runtime. Names begin with sallyport_. Labels never carry ids or names that a guest
// can choose.
var Registry = newRegistry()

// FineBuckets are for times from 10 us to half a second, in seconds, each half as long again as the one before.
var FineBuckets = prometheus.ExponentialBuckets(10e-6, 1.5, 28)

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// ListenLoopback binds an address that only this machine reaches. Errors: [errs.Invalid] for any other, [errs.Unavailable] when it is taken.
func ListenLoopback(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return nil, errs.Newf(errs.Invalid, "metrics are served on a loopback address only, such as 127.0.0.1:9464, not on %q", address)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, address+" cannot be listened on: another program has the port", err)
	}
	return l, nil
}

// ServeMetrics serves the registry on l, which it owns, until ctx ends.
func ServeMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(Registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
