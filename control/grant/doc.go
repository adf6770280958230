// Package grant decides: it evaluates the grants of a profile and the grants that were given, with their CEL conditions, over one call. Pure
// apart from compiling.
package grant
