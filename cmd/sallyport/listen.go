package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/identity/unixsock"
	"sallyport.dev/telemetry"
)

// listenFlags are where hosts and workers of other machines reach control.
type listenFlags struct {
	Listen  string `help:"Where hosts and workers of other machines dial: ADDR:PORT. Default: this machine only." placeholder:"ADDR"`
	Address string `help:"What they dial, where that is not what --listen says: HOST:PORT. It stands in enrolment tokens." placeholder:"HOST:PORT"`
}

func (f listenFlags) args() []string {
	var out []string
	if f.Listen != "" {
		out = append(out, "--listen", f.Listen)
	}
	if f.Address != "" {
		out = append(out, "--address", f.Address)
	}
	return out
}

// dialed is what other machines dial to reach a listener: what the operator said, the address itself, or this machine's name where it listens on all.
func (f listenFlags) dialed(bound net.Addr) string {
	if f.Address != "" {
		return f.Address
	}
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return bound.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return net.JoinHostPort(host, port)
}

// listeners opens what a process serves on. After a first failure it opens nothing more; close ends all of them.
type listeners struct {
	all []net.Listener
	err error
}

func (o *listeners) keep(l net.Listener, err error) net.Listener {
	if err != nil {
		o.err = err
		return nil
	}
	o.all = append(o.all, l)
	return l
}

func (o *listeners) unix(ctx context.Context, path string) net.Listener {
	if o.err != nil {
		return nil
	}
	return o.keep(listenUnix(ctx, path))
}

func (o *listeners) tcp(ctx context.Context, address string) net.Listener {
	if o.err != nil {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		err = errs.Wrap(errs.Unavailable, address+" cannot be listened on: another program has the port, or the address is not this machine's", err)
	}
	return o.keep(l, err)
}

// metrics is nil without an address.
func (o *listeners) metrics(ctx context.Context, address string) net.Listener {
	if o.err != nil || address == "" {
		return nil
	}
	return o.keep(telemetry.ListenLoopback(ctx, address))
}

func (o *listeners) close() {
	for _, l := range o.all {
		l.Close()
	}
}

// listenUnix binds a socket of mode 0600 in a directory of mode 0700, and takes the place of one that nobody serves any more.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.Wrap(errs.NotAllowed, "the socket's directory "+dir+" cannot be made", err)
	}
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, errs.Newf(errs.NotAllowed, "others can enter %s: chmod 700 %s", dir, dir)
	}
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if c, err := unixsock.Dial(asking, path); err == nil {
		c.Close()
		return nil, errs.Newf(errs.Conflict, "another sallyport serves %s: end it first, or name another --state", path)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, errs.Wrap(errs.NotAllowed, "the old socket "+path+" cannot be removed", err)
	}
	l, err := unixsock.Listen(path)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, fmt.Sprintf("%s cannot be bound", path), err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, errs.Wrap(errs.NotAllowed, path+" cannot be made private", err)
	}
	return l, nil
}
