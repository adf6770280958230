package supervisor

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"sallyport.dev/errs"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

// Arg is the first argument by which this program knows that it is a supervisor: main calls [Main] then.
const Arg = "__supervise"

// Background is a job without a terminal, for a supervisor that the host starts.
type Background struct {
	Job    Job    `json:"job"`
	Driver string `json:"driver"`
	Socket string `json:"socket"` // where the host's gate listens
}

// OutputName is the file in the session's folder that keeps what the agent prints; the older half is in the same name with .1.
const OutputName = "agent.log"

// logName is the file in the session's folder in which a supervisor in the background says what it has to say.
const logName = "supervisor.log"

// maxOutput is the size at which the agent's output begins a new file; two are kept.
const maxOutput = 8 << 20

// Started is a supervisor process that waits for its job.
type Started struct {
	// ID names it for the gate: admit the sandbox with it before Go.
	ID proc.ID

	cmd  *exec.Cmd
	jobs *os.File
}

// Spawn starts a supervisor in a process of its own, which outlives this one. program is this program with [Arg]; dir is the session's folder.
func Spawn(program []string, dir string) (*Started, error) {
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the supervisor's log cannot be written", err)
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the supervisor could not be started", err)
	}
	defer read.Close()
	cmd := exec.CommandContext(context.Background(), program[0], program[1:]...) // it outlives whoever starts it
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{read}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} // nothing of the host's environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, errs.Wrap(errs.Unavailable, "the supervisor could not be started", err)
	}
	s, err := proc.Read(cmd.Process.Pid)
	if err != nil {
		write.Close()
		_ = cmd.Wait()
		return nil, errs.Wrap(errs.Unavailable, "the supervisor ended at once; its log says why", err)
	}
	return &Started{ID: s.ID, cmd: cmd, jobs: write}, nil
}

// Go gives the supervisor its job and reaps it in the background once it ends.
func (s *Started) Go(b Background) error {
	defer s.jobs.Close()
	data, err := json.Marshal(b)
	if err != nil {
		return errs.Wrap(errs.Internal, "the job cannot be written", err)
	}
	go func() { _ = s.cmd.Wait() }()
	if _, err := s.jobs.Write(data); err != nil {
		return errs.Wrap(errs.Unavailable, "the supervisor went away; its log says why", err)
	}
	return nil
}

// Cancel ends a supervisor that got no job.
func (s *Started) Cancel() {
	_ = s.jobs.Close()
	_ = s.cmd.Wait()
}

// Main is a supervisor in a process of its own: it reads its job from descriptor 3. It returns the exit status.
func Main(drivers sandbox.Registry) int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	jobs := os.NewFile(3, "job")
	data, err := io.ReadAll(io.LimitReader(jobs, 64<<20))
	_ = jobs.Close()
	if err == nil && len(data) == 0 {
		return 0 // no job came
	}
	var b Background
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil {
		log.Error("the job cannot be read", "err", err)
		return Failed
	}
	outcome, err := b.run(drivers, log)
	if err != nil {
		log.Error("the sandbox failed", "session", b.Job.Plan.Session, "ran", outcome.Ran, "err", err)
	}
	return outcome.Code
}

func (b Background) run(drivers sandbox.Registry, log *slog.Logger) (Outcome, error) {
	failed := Outcome{Code: Failed}
	// The host chose the driver and refused what is too open; the plan carries the user's word.
	driver, err := drivers.Choose(b.Driver, sandbox.Asserted, b.Job.Plan.InsecureNoSandbox)
	if err != nil {
		return failed, err
	}
	client, err := gate.NewClient(gate.Dial(b.Socket))
	if err != nil {
		return failed, err
	}
	return Run(context.Background(), Config{Job: b.Job, Driver: driver, Host: client, Log: log})
}
