// Command probe is an agent that looks around in its sandbox.
package main

func main() {}
