package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/console"
	"sallyport.dev/control/server"
	"sallyport.dev/errs"
)

// webFlags are where people's browsers, and programs with a token, reach control.
type webFlags struct {
	Web       string `help:"Serve the console and the people's API to browsers and tokens: ADDR:PORT; none serves nothing. Port 0: a free one, kept over restarts." placeholder:"ADDR"`
	PublicURL string `help:"Where browsers reach it, when that is not what --web says: https://HOST. Behind a proxy that terminates TLS, the proxy's." placeholder:"URL"`
	WebCert   string `help:"Certificate for --web, PEM." placeholder:"FILE"`
	WebKey    string `help:"Its key, PEM." placeholder:"FILE"`
}

func (f webFlags) args() []string {
	var out []string
	for _, p := range []struct{ flag, value string }{{"--web", f.Web}, {"--public-url", f.PublicURL}, {"--web-cert", f.WebCert}, {"--web-key", f.WebKey}} {
		if p.value != "" {
			out = append(out, p.flag, p.value)
		}
	}
	return out
}

// noWeb is the value of --web that serves nothing.
const noWeb = "none"

// web is what is served to browsers; nil serves nothing.
type web struct {
	listener net.Listener
	public   *url.URL
	tls      *tls.Config // nil: plain http
}

// open binds the web listener. portFile remembers a free port, so that sessions and links outlive a restart.
func (f webFlags) open(ctx context.Context, opened *listeners, portFile string) *web {
	if opened.err != nil || f.Web == "" || f.Web == noWeb {
		return nil
	}
	w, err := f.parse()
	if err != nil {
		opened.err = err
		return nil
	}
	address := f.Web
	host, port, _ := net.SplitHostPort(address)
	if port == "0" {
		if kept, err := os.ReadFile(portFile); err == nil {
			again := listeners{}
			if w.listener = again.tcp(ctx, net.JoinHostPort(host, strings.TrimSpace(string(kept)))); w.listener != nil {
				opened.all = append(opened.all, w.listener)
			}
		}
	}
	if w.listener == nil {
		if w.listener = opened.tcp(ctx, address); w.listener == nil {
			return nil
		}
	}
	bound := w.listener.Addr().String()
	if _, got, err := net.SplitHostPort(bound); err == nil && port == "0" {
		if err := os.WriteFile(portFile, []byte(got+"\n"), 0o600); err != nil {
			opened.err = errs.Wrap(errs.Unavailable, "the console's port cannot be kept", err)
			return nil
		}
	}
	if w.public == nil {
		w.public = &url.URL{Scheme: "http", Host: bound}
		if w.tls != nil {
			w.public.Scheme = "https"
		}
	}
	return w
}

// parse checks the flags. Plain http leaves this machine only behind a proxy.
func (f webFlags) parse() (*web, error) {
	host, port, err := net.SplitHostPort(f.Web)
	if err != nil {
		return nil, errs.New(errs.Invalid, "--web is ADDR:PORT, or none")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return nil, errs.New(errs.Invalid, "--web is ADDR:PORT, or none")
	}
	w := &web{}
	if f.PublicURL != "" {
		u, err := url.Parse(f.PublicURL)
		if err != nil || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, errs.New(errs.Invalid, "--public-url is https://HOST or https://HOST:PORT, without a path")
		}
		w.public = &url.URL{Scheme: u.Scheme, Host: u.Host}
	}
	if (f.WebCert == "") != (f.WebKey == "") {
		return nil, errs.New(errs.Invalid, "--web-cert and --web-key come together")
	}
	if f.WebCert != "" {
		pair, err := tls.LoadX509KeyPair(f.WebCert, f.WebKey)
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "--web-cert and --web-key cannot be read as a pair", err)
		}
		w.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	public := w.public
	switch {
	case w.tls != nil && public != nil && public.Scheme != "https":
		return nil, errs.New(errs.Invalid, "with a certificate, --public-url begins with https")
	case w.tls == nil && !loopback && (public == nil || public.Scheme != "https"):
		return nil, errs.New(errs.Invalid, "browsers of other machines need TLS: give --web-cert and --web-key, or --public-url https://HOST of a proxy that terminates it")
	case public != nil && public.Scheme == "http":
		if pip := net.ParseIP(public.Hostname()); public.Hostname() != "localhost" && (pip == nil || !pip.IsLoopback()) {
			return nil, errs.New(errs.Invalid, "a --public-url of other machines begins with https")
		}
	}
	return w, nil
}

// address is where browsers reach the console, or "".
func (w *web) address() string {
	if w == nil {
		return ""
	}
	return w.public.String()
}

// handler is everything that the web listener serves: the people's API for who carries a secret, and the console.
func (w *web) handler(srv *server.Server, log *slog.Logger) (http.Handler, error) {
	pages, err := console.Handler(console.Config{API: srv.InProcess(), Public: w.public, Log: log})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	srv.MountPeople(mux)
	mux.Handle("/", pages)
	return mux, nil
}

// serve serves until ctx ends.
func (w *web) serve(ctx context.Context, srv *server.Server, log *slog.Logger) error {
	h, err := w.handler(srv, log)
	if err != nil {
		return err
	}
	const header, idle, end = 10 * time.Second, 2 * time.Minute, time.Second
	s := &http.Server{Handler: h, ReadHeaderTimeout: header, IdleTimeout: idle, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	l := w.listener
	if w.tls != nil {
		l = tls.NewListener(l, w.tls)
	}
	errc := make(chan error, 1)
	go func() { errc <- s.Serve(l) }()
	select {
	case err := <-errc:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), end)
	defer cancel()
	if err := s.Shutdown(ending); err != nil {
		s.Close() // live pages: they stay until somebody ends them
	}
	if err := <-errc; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
