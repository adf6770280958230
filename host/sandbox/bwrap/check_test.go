package bwrap

import "testing"

// Where no sandbox can be made, each cause that can be told has its own remedy.
func TestAdvice(t *testing.T) {
	for _, c := range []struct{ setting, value, output, want string }{
		{"kernel/unprivileged_userns_clone", "0", "bwrap: No permissions to create new namespace", "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"},
		{"user/max_user_namespaces", "0", "bwrap: Creating new namespace failed: No space left on device", "allow user namespaces: sysctl -w user.max_user_namespaces=15000"},
		{
			"kernel/apparmor_restrict_unprivileged_userns", "1", "bwrap: setting up uid map: Permission denied",
			"AppArmor forbids user namespaces: give bwrap a profile with userns (Ubuntu: apt-get install apparmor-profiles), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
		},
		{
			"user/max_user_namespaces", "15000", "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
			"a new /proc cannot be mounted here, as in most containers: run Sallyport on the machine itself, or start the container with an unmasked /proc",
		},
		{"", "", "bwrap: Unknown option --disable-userns", "bubblewrap is older than 0.8.0: install a newer one"},
		{"", "", "bwrap: No permissions to create new namespace", "user namespaces seem to be forbidden here, as in most containers: run Sallyport on the machine itself"},
	} {
		read := func(name string) string {
			if name == c.setting {
				return c.value
			}
			return ""
		}
		if got := advice(read, c.output); got != c.want {
			t.Errorf("%s=%s, %q: %s", c.setting, c.value, c.output, got)
		}
	}
}
