package up

import (
	"errors"
	"io"
	"os"
	"strconv"
)

// readyEnv names the descriptor on which a part says that it holds what is its own: its sockets, its locks, its store. Asking around would not do:
// another installation's part may answer in its place.
const readyEnv = "SALLYPORT_READY_FD"

const readyLine = "ready\n"

// Ready tells the supervisor that this process holds what is its own. Without a supervisor it does nothing. It is called once.
func Ready() error {
	text := os.Getenv(readyEnv)
	if text == "" {
		return nil
	}
	// A child of this process must not speak for it.
	if err := os.Unsetenv(readyEnv); err != nil {
		return err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return errors.New(readyEnv + " is not a descriptor")
	}
	f := os.NewFile(uintptr(fd), readyEnv)
	if f == nil {
		return errors.New(readyEnv + " is not open")
	}
	_, err = io.WriteString(f, readyLine)
	return errors.Join(err, f.Close())
}
