// Package daemon is the host's one long process: it keeps the Link to control, serves the relay directory and the model gateway of every sandbox of
// this host, and opens, closes and recovers sessions. The supervisors of sandboxes talk to it over host.sock.
package daemon

import (
	"errors"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml"

	"sallyport.dev/errs"
	"sallyport.dev/host/egress"
)

// Config is host.yaml: what this host alone knows. Control never sees it.
type Config struct {
	Version int                      `yaml:"version"`
	Models  map[string]egress.Source `yaml:"models"` // by the name that profiles use (model.source)
}

// ReadConfig reads host.yaml, strictly. A file that is not there is an empty configuration. Errors: [errs.Invalid], [errs.NotAllowed] for a file
// that others can write.
func ReadConfig(path string) (Config, error) {
	c := Config{Version: 1}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, errs.Wrap(errs.Invalid, path+" cannot be read; run as the user that the state directory belongs to", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o022 != 0 {
		return c, errs.Newf(errs.NotAllowed, "others can write %s, which names commands that this host runs: chmod 600 %s", path, path)
	}
	c = Config{}
	if err := yaml.UnmarshalWithOptions(data, &c, yaml.Strict()); err != nil {
		return c, errs.Newf(errs.Invalid, "%s: %s; mend that line, then start the host again", path, yaml.FormatError(err, false, false))
	}
	if c.Version != 1 {
		return c, errs.Newf(errs.Invalid, "%s: version must be 1: write version: 1 as its first line", path)
	}
	for name, s := range c.Models {
		if err := s.Validate(name); err != nil {
			return c, errs.Newf(errs.Invalid, "%s: %s", path, errs.Message(err))
		}
	}
	return c, nil
}
