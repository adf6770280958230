package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

// build is set by the linker: -X main.build=v1.2.3.
var build = ""

// buildName names this build: the linker's word, the module's version, or the revision.
func buildName() string {
	if build != "" {
		return build
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

type versionCmd struct{}

// Run prints the build and its protocol numbers.
func (versionCmd) Run(g *Globals) error {
	if g.JSON {
		g.printJSON(map[string]any{"build": buildName(), "relay": relay.Version, "protected": intent.Protected, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
		return nil
	}
	fmt.Fprintf(g.out, "sallyport %s (relay %d, protected %d, %s, %s/%s)\n", buildName(), relay.Version, intent.Protected, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
