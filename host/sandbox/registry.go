package sandbox

import (
	"slices"
	"strings"

	"sallyport.dev/errs"
)

// Registry is the set of drivers of a host. It does not change once made.
type Registry struct {
	drivers []Driver
}

// NewRegistry returns a registry of these drivers.
func NewRegistry(drivers ...Driver) Registry { return Registry{drivers: slices.Clone(drivers)} }

// All returns the drivers in their order.
func (r Registry) All() []Driver { return slices.Clone(r.drivers) }

// Choose returns the driver of that name if a profile that demands closed may use it; insecure is the user's word that no sandbox is
// wanted. Nothing was made when it fails.
//
// Errors: [errs.NotFound] for a driver that is unknown, [errs.NotAllowed] for one that closes less than the profile demands.
func (r Registry) Choose(name string, demanded Closed, insecure bool) (Driver, error) {
	i := slices.IndexFunc(r.drivers, func(d Driver) bool { return d.Name() == name })
	if i < 0 {
		return nil, errs.Newf(errs.NotFound, "there is no sandbox driver %q; this host has %s", name, r.sentence())
	}
	d := r.drivers[i]
	switch has := d.Capabilities().Closed; Meets(has, demanded) {
	case Enough:
		if insecure {
			return nil, errs.Newf(errs.Invalid, "driver %s makes a sandbox: leave --insecure-no-sandbox out; it is for profiles with sandbox: {driver: process}", name)
		}
		return d, nil
	case NeedsConsent:
		return nil, errs.Newf(errs.NotAllowed, "driver %s only asserts that its network is closed; a profile that accepts this says closed: asserted", name)
	default:
		if has == Open && insecure {
			return d, nil
		}
		return nil, errs.Newf(errs.NotAllowed, "driver %s has no sandbox at all: the agent could read your files and credentials; use %s, or say --insecure-no-sandbox if you mean it", name, r.closedSentence())
	}
}

// Fit is the verdict of [Meets].
type Fit int

// Verdicts.
const (
	Enough Fit = iota
	NeedsConsent
	TooOpen
)

// Meets compares what a driver has with what a profile demands. An unknown word on either side is too open.
func Meets(has, demanded Closed) Fit {
	switch {
	case has == Proven && (demanded == Proven || demanded == Asserted || demanded == Open || demanded == ""):
		return Enough
	case has == Asserted && (demanded == Asserted || demanded == Open):
		return Enough
	case has == Asserted && (demanded == Proven || demanded == ""):
		return NeedsConsent
	default:
		return TooOpen
	}
}

func (r Registry) sentence() string {
	var names []string
	for _, d := range r.drivers {
		names = append(names, d.Name())
	}
	return join(names)
}

func (r Registry) closedSentence() string {
	var names []string
	for _, d := range r.drivers {
		if d.Capabilities().Closed == Proven {
			names = append(names, d.Name())
		}
	}
	return join(names)
}

func join(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
