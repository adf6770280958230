package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

// Bounds of what browsers send.
const maxForm = 2 << 20

// policy: our own files alone; nothing inline, nothing evaluated, no frame around us, no request to anybody else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (c *console) secure() bool { return c.cfg.Public.Scheme == "https" }

// cookie is the session's cookie. Plain http is served on loopback alone: there a cookie cannot have the prefix, which asks for TLS.
func (c *console) cookie(value string, until time.Time) *http.Cookie {
	k := &http.Cookie{Name: "sallyport_" + c.cfg.Public.Port(), Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Expires: until}
	if c.secure() {
		k.Name, k.Secure = "__Host-sallyport", true
	}
	if value == "" {
		k.MaxAge = -1
	}
	return k
}

// guard is around everything: which host was meant, from where it was asked, and what a browser may do with an answer.
func (c *console) guard(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c.sorry(w, http.StatusForbidden, errs.NotAllowed, "this was asked from another site, and nothing was done")
	}))
	inner := crossOrigin.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		if c.secure() {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if strings.HasPrefix(r.URL.Path, "/static/") {
			h.Set("Cache-Control", "no-cache")
		}
		// A name that is bound anew to our address is another Host: it gets nothing.
		if !strings.EqualFold(r.Host, c.cfg.Public.Host) {
			c.sorry(w, http.StatusMisdirectedRequest, errs.NotAllowed, "this is not the address of this console; the link that was printed has the right one")
			return
		}
		inner.ServeHTTP(w, r)
	})
}

// signedIn hands a page the browser's session. Whether it is one, the API says.
func (c *console) signedIn(p page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		k, err := r.Cookie(c.cookie("", time.Time{}).Name)
		if err != nil || k.Value == "" {
			c.signIn(w, r)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), sessionKey{}, k.Value))
		if err := p(w, r); err != nil {
			c.fail(w, r, err)
		}
	}
}

// signIn says how one comes in, at the address that was asked for.
func (c *console) signIn(w http.ResponseWriter, _ *http.Request) {
	if err := c.write(w, http.StatusUnauthorized, "enter.html", view{Title: "Come in"}); err != nil {
		c.sorry(w, http.StatusInternalServerError, errs.Internal, "the page cannot be drawn")
	}
}

// fail is an error as a page.
func (c *console) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, message, status := failure(err)
	switch status {
	case http.StatusUnauthorized:
		http.SetCookie(w, c.cookie("", time.Unix(1, 0)))
		c.signIn(w, r)
		return
	case http.StatusInternalServerError:
		c.cfg.Log.Error("a page failed", "path", r.URL.Path, "err", err)
	}
	c.sorry(w, status, code, message)
}

func (c *console) sorry(w http.ResponseWriter, status int, code errs.Code, message string) {
	v := view{Title: http.StatusText(status), Data: struct {
		Code    errs.Code
		Message string
	}{code, message}}
	if err := c.write(w, status, "sorry.html", v); err != nil {
		http.Error(w, "the page cannot be drawn", http.StatusInternalServerError)
	}
}

// enterPage takes a link: its secret is in the fragment, which no browser sends, so a script of ours moves it into the form.
func (c *console) enterPage(w http.ResponseWriter, _ *http.Request) {
	if err := c.write(w, http.StatusOK, "enter.html", view{Title: "Come in"}); err != nil {
		c.sorry(w, http.StatusInternalServerError, errs.Internal, "the page cannot be drawn")
	}
}

// enter exchanges the link for a session.
func (c *console) enter(w http.ResponseWriter, r *http.Request) {
	secret := strings.TrimSpace(r.PostFormValue("secret"))
	if _, after, ok := strings.Cut(secret, "#"); ok { // the whole link was pasted
		secret = after
	}
	in, err := c.people.Enter(r.Context(), &sallyportv1.EnterRequest{Secret: secret})
	if err != nil {
		c.fail(w, r, err)
		return
	}
	http.SetCookie(w, c.cookie(in.GetSession(), time.UnixMilli(in.GetExpiresMs())))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// leave ends the session.
func (c *console) leave(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.people.Leave(r.Context(), &sallyportv1.LeaveRequest{}); err != nil {
		return err
	}
	http.SetCookie(w, c.cookie("", time.Unix(1, 0)))
	http.Redirect(w, r, "/enter", http.StatusSeeOther)
	return nil
}
