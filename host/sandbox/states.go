package sandbox

import "sallyport.dev/errs"

// State is the life of an [Instance].
type State string

// States of an instance.
const (
	Prepared  State = "prepared"
	Running   State = "running"
	Stopped   State = "stopped" // no process is left; files are
	Destroyed State = "destroyed"
)

// Event moves an instance from one state to another.
type Event string

// Events.
const (
	Start   Event = "start"
	Resume  Event = "resume"
	Exec    Event = "exec"
	Stop    Event = "stop"
	Park    Event = "park"
	Destroy Event = "destroy"
)

// order is the whole life. Stop and Destroy repeat without harm: they are what runs when something else failed.
var order = map[State]map[Event]State{
	Prepared:  {Start: Running, Stop: Stopped, Destroy: Destroyed},
	Running:   {Exec: Running, Stop: Stopped, Park: Stopped, Destroy: Destroyed},
	Stopped:   {Resume: Running, Stop: Stopped, Park: Stopped, Destroy: Destroyed},
	Destroyed: {Stop: Destroyed, Destroy: Destroyed},
}

// Next returns the state after an event, or [errs.Conflict] where the event has no place.
func Next(s State, e Event) (State, error) {
	next, ok := order[s][e]
	if !ok {
		return s, errs.Newf(errs.Conflict, "a sandbox that is %s cannot %s", s, e)
	}
	return next, nil
}
