package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// expected is what each call of the script must come to: its last state, and how often the server did it.
var expected = []struct {
	title, state string
	effects      int
}{
	{"the button is blue", "answered", 1},
	{"delete everything", "denied", 0},
	{"pay the invoice", "uncertain", 1},
}

// proof prints every call's steps and the server's own count, and fails when they are not what they must be.
func (d *show) proof() error {
	out, err := d.sallyport("", "--json", "calls", "list")
	if err != nil {
		return err
	}
	var list struct{ Calls []struct{ ID, State string } }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	if len(list.Calls) != 1+len(expected) {
		return fmt.Errorf("the journal has %d calls, the agent made %d", len(list.Calls), 1+len(expected))
	}
	for i := len(list.Calls) - 1; i >= 0; i-- {
		// An uncertain call is shown with exit code 6; what it prints is what counts here.
		shown, err := d.sallyport("", "calls", "show", list.Calls[i].ID)
		if err != nil && list.Calls[i].State != "uncertain" {
			return err
		}
		fmt.Println(indent(shown))
	}
	for i, e := range expected {
		got := list.Calls[len(list.Calls)-2-i]
		arguments := fmt.Sprintf(`{"project":"web","title":%q}`, e.title)
		n, err := d.effects(arguments)
		if err != nil {
			return err
		}
		fmt.Printf("   %-20s journal: %-10s the server did it %d times\n", e.title, got.State, n)
		// A person may have decided otherwise; what must always hold is that nothing ran twice, nor what was denied.
		if d.interactive && n <= 1 && (n == 0 || got.State != "denied") {
			continue
		}
		if got.State != e.state || n != e.effects {
			return fmt.Errorf("%q must be %s with %d effects", e.title, e.state, e.effects)
		}
	}
	last := list.Calls[0]
	if last.State != "uncertain" {
		return nil
	}
	fmt.Println("\n   An uncertain call is never sent again by itself. The person looks at the server, and says so:")
	out, err = d.sallyport("", "calls", "resolve", last.ID, "done", "--note", "found it at the server")
	if err != nil {
		return err
	}
	fmt.Print(indent(strings.TrimSpace(out)))
	return nil
}
