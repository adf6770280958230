// Package inbox holds questions to people: approvals, client tools, what an upstream asks, uncertain outcomes. They are one kind of row. It
// says what is shown, who may decide, and writes the decision; the call's pipeline reads the row and goes on.
package inbox
