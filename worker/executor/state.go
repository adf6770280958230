// Package executor executes signed intents, each once. It verifies who wrote an intent and what it binds, opens the credential, prepares the dispatch,
// releases its bytes when control says Go, and keeps what came of it until control acknowledged. It does not queue, and it starts nothing of its own.
//
// What may follow what is one table ([next]); everything that can send a byte goes through its one transition into [sending].
package executor

// state is where an intent stands at this worker.
type state int

const (
	absent    state = iota // never seen, or so long ago that it cannot be valid any more
	preparing              // verified; being prepared; no Go yet
	armed                  // being prepared, with Go: its bytes leave as soon as it is prepared
	ready                  // prepared; no byte of the call has left; waits for Go
	sending                // released: bytes may have left
	finished               // the outcome is kept until it is acknowledged
	closed                 // no byte left, and none will
	forgotten              // bytes may have left; the outcome was acknowledged
	states
)

var stateNames = [states]string{"absent", "preparing", "armed", "ready", "sending", "finished", "closed", "forgotten"}

func (s state) String() string { return stateNames[s] }

// event is what happens to an intent.
type event int

const (
	onIntent    event = iota // a verified intent that waits for Go
	onIntentGo               // a verified intent that carries Go
	onPrepared               // Prepare succeeded
	onFailed                 // Prepare failed: nothing was sent
	onGo                     // control committed the barrier
	onLate                   // start_before has passed
	onAttest                 // control asks
	onClose                  // control, or a person, wants it not to run
	onDone                   // the one Send returned
	onAck                    // control settled an outcome after which bytes may have left
	onAckUnsent              // control settled an outcome that proves that none did
	events
)

var eventNames = [events]string{"intent", "intent with go", "prepared", "failed", "go", "late", "attest", "close", "done", "ack", "ack of unsent"}

func (e event) String() string { return eventNames[e] }

// action is what the executor does on a transition, in the order of the list.
type action int

const (
	begin            action = iota // start the one goroutine of this intent
	release                        // let it send: the only way to a byte
	drop                           // make it give up; it must not have been released
	abort                          // stop waiting for a read's answer
	announce                       // frame Ready
	report                         // frame Outcome
	reportLost                     // frame Outcome: sent, and no longer known what came of it
	attestNotStarted               // frame Attested
	attestRunning
	attestFinished
)

// step is one row's right side.
type step struct {
	to state
	do []action
}

// table says what follows. What is not in it changes nothing and answers nothing.
//
//   - A repeated intent attaches: it gets what the first one got, and begins nothing.
//   - Attest and Close of what has not gone end it: a later Go finds it closed. So the answer "not started" stays true.
//   - From sending on, nothing leads back to a state from which a byte can leave.
var table = map[state]map[event]step{
	absent: {
		onIntent:   {preparing, []action{begin}},
		onIntentGo: {armed, []action{begin}},
		onGo:       {closed, []action{attestNotStarted}},
		onAttest:   {closed, []action{attestNotStarted}},
		onClose:    {closed, []action{attestNotStarted}},
	},
	preparing: {
		onPrepared: {ready, []action{announce}},
		onFailed:   {finished, []action{report}},
		onGo:       {armed, nil},
		onLate:     {finished, []action{drop, report}},
		onAttest:   {closed, []action{drop, attestNotStarted}},
		onClose:    {closed, []action{drop, attestNotStarted}},
	},
	armed: {
		onPrepared: {sending, []action{release}},
		onFailed:   {finished, []action{report}},
		onLate:     {finished, []action{drop, report}},
		onAttest:   {armed, []action{attestRunning}},
		onClose:    {closed, []action{drop, attestNotStarted}},
	},
	ready: {
		onIntent:   {ready, []action{announce}},
		onIntentGo: {ready, []action{announce}},
		onGo:       {sending, []action{release}},
		onLate:     {finished, []action{drop, report}},
		onAttest:   {closed, []action{drop, attestNotStarted}},
		onClose:    {closed, []action{drop, attestNotStarted}},
	},
	sending: {
		onDone:   {finished, []action{report}},
		onAttest: {sending, []action{attestRunning}},
		onClose:  {sending, []action{abort, attestRunning}},
	},
	finished: {
		onIntent:    {finished, []action{report}},
		onIntentGo:  {finished, []action{report}},
		onGo:        {finished, []action{report}},
		onAttest:    {finished, []action{attestFinished, report}},
		onClose:     {finished, []action{attestFinished, report}},
		onAck:       {forgotten, nil},
		onAckUnsent: {closed, nil},
	},
	closed: {
		onIntent:   {closed, []action{attestNotStarted}},
		onIntentGo: {closed, []action{attestNotStarted}},
		onGo:       {closed, []action{attestNotStarted}},
		onAttest:   {closed, []action{attestNotStarted}},
		onClose:    {closed, []action{attestNotStarted}},
	},
	forgotten: {
		onAttest: {forgotten, []action{attestFinished, reportLost}},
		onClose:  {forgotten, []action{attestFinished, reportLost}},
	},
}

// next is the table as a function: ok is false when the event changes nothing and answers nothing.
func next(s state, e event) (st step, ok bool) {
	st, ok = table[s][e]
	return st, ok
}
