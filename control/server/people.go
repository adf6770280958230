package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/user"
	"strconv"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"golang.org/x/sys/unix"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

// Who is the person behind a request.
type Who struct {
	inbox.Actor
	Administrator bool
	roles         []person.Role
	limits        person.Limits
	pass          person.Pass // the zero value on the machine's own socket
}

type whoKey struct{}

func whoOf(ctx context.Context) Who {
	w, _ := ctx.Value(whoKey{}).(Who)
	return w
}

// judged is what the rules need to know of the person.
func (w Who) judged() person.Who {
	return person.Who{Person: w.Person, Roles: w.roles, Limits: w.limits, ReadOnly: w.pass.ReadOnly}
}

// Roles lists what the person may do.
func (w Who) Roles() []string {
	var out []string
	for _, r := range w.roles {
		out = append(out, string(r))
	}
	return out
}

type credKey struct{}

// connContext keeps the peer credentials of a Unix socket's connection for its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			cred = got
		}
	}); err != nil || cred == nil {
		return ctx
	}
	return context.WithValue(ctx, credKey{}, cred)
}

// localPeople authenticates by SO_PEERCRED: the person is local:USER. The socket's mode (0600) and owner decide who can connect at all; who can is
// the owner of this installation, or root: an administrator.
func localPeople(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cred, ok := r.Context().Value(credKey{}).(*unix.Ucred)
		if !ok {
			http.Error(w, "no peer credentials", http.StatusUnauthorized)
			return
		}
		uid := strconv.FormatUint(uint64(cred.Uid), 10)
		name := uid
		if u, err := user.LookupId(uid); err == nil {
			name = u.Username
		}
		who := Who{Actor: inbox.Actor{Person: control.Person("local:" + name), Local: true}, Administrator: true, roles: []person.Role{person.Administrator}}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
	})
}

var connectCodes = map[errs.Code]connect.Code{
	errs.Invalid: connect.CodeInvalidArgument, errs.InvalidArguments: connect.CodeInvalidArgument, errs.NotFound: connect.CodeNotFound,
	errs.UnknownTool: connect.CodeNotFound, errs.UnknownCall: connect.CodeNotFound, errs.Conflict: connect.CodeAborted,
	errs.NotAllowed: connect.CodePermissionDenied, errs.Unreachable: connect.CodeUnavailable, errs.Unavailable: connect.CodeUnavailable,
	errs.Busy: connect.CodeResourceExhausted, errs.Oversize: connect.CodeResourceExhausted, errs.StoreFull: connect.CodeResourceExhausted,
	errs.Fenced: connect.CodeAborted, errs.Quarantined: connect.CodeFailedPrecondition, errs.NotDurable: connect.CodeFailedPrecondition,
	errs.NotConnected: connect.CodeFailedPrecondition, errs.ApprovalExpired: connect.CodeFailedPrecondition, errs.Uncertain: connect.CodeFailedPrecondition,
	errs.Internal: connect.CodeInternal,
}

// safeErrors turns our errors into Connect's: code and safe message out, detail into the log. Nothing else leaves.
func (s *Server) safeErrors(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		err := next(ctx, spec, stream)
		if err == nil {
			return nil
		}
		var already *connect.Error
		if errors.As(err, &already) {
			return err
		}
		if ctx.Err() != nil {
			return connect.NewError(connect.CodeCanceled, "cancelled")
		}
		code := errs.CodeOf(err)
		level := s.log.Debug
		if code == errs.Internal {
			level = s.log.Error
		}
		level("request failed", "procedure", spec.Procedure, "code", string(code), "err", err)
		c, ok := connectCodes[code]
		if !ok {
			c = connect.CodeFailedPrecondition
		}
		out := connect.NewError(c, errs.Message(err))
		if detail, derr := connectproto.NewErrorDetail(&sallyportv1.Failure{Code: string(code)}); derr == nil {
			out = out.WithDetail(detail)
		}
		return out
	}
}
