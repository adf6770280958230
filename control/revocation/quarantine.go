package revocation

import "sallyport.dev/control"

// QuestionOfQuarantine is what a person is asked of a write that was unfinished in a store that turned out to be old.
func QuestionOfQuarantine(c *control.Call) *control.Question {
	return &control.Question{
		Org: c.Org, ID: control.NewID(), Kind: control.AskUncertain, Call: c.ID, Session: c.Session, Owner: c.Owner, Profile: c.Profile,
		Local: true, Binding: c.Binding, State: control.QuestionOpen,
		Text: "the store was restored to an earlier state: this call may have run in what was lost",
	}
}
