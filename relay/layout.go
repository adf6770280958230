package relay

// Where the relay lies in a sandbox. A host keeps the same layout below its own folder of the session.
const (
	GuestIn  = "/run/sallyport/in"  // read-only in the sandbox, written by the host
	GuestOut = "/run/sallyport/out" // writable in the sandbox

	SessionName = "session.json" // in in/
	ToolsName   = "tools.json"   // in in/
	OpenName    = "open"         // in in/: the gate is open once it exists
	BridgeName  = "bridge.sock"  // in in/
	BinDir      = "bin"          // in in/
	ResultsDir  = "results"      // in in/: ID.json, never replaced
	ProgressDir = "progress"     // in in/: ID.json, replaced by newer progress
	FilesDir    = "files"        // in in/: results that are too long to be inline, named by their SHA-256 in hex
	NewDir      = "new"          // in out/: what the guest publishes
	TmpDir      = "tmp"          // in out/ and in in/: where a file is written before it gets its name
	fileMode    = 0o644          // the host may be another user than the guest
)
