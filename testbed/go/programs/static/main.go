// Command static stands for a job of which nothing but its output is known: an image without a shell and without Python.
// It prints numbered lines that name its place in the job, then waits, then ends as it was asked to.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// What launchers and controllers say about the place of a process in its job.
var places = []string{
	"HOSTNAME", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX",
	"JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "MASTER_ADDR", "MASTER_PORT", "PET_NODE_RANK", "PET_NNODES",
}

func place() string {
	var words []string
	for _, name := range places {
		if value, found := os.LookupEnv(name); found {
			words = append(words, name+"="+value)
		}
	}
	return strings.Join(words, " ")
}

func onTerm(answer string, code int) {
	switch answer {
	case "default":
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
	case "trap":
		received := make(chan os.Signal, 1)
		signal.Notify(received, syscall.SIGTERM)
		go func() {
			<-received
			fmt.Fprintln(os.Stderr, "static: got SIGTERM, leaving")
			os.Exit(code)
		}()
	default:
		fmt.Fprintf(os.Stderr, "static: -term is default, ignore or trap, not %q\n", answer)
		os.Exit(2)
	}
}

func main() {
	lines := flag.Int("lines", 1, "how many lines to print; below 0: without end")
	interval := flag.Duration("interval", 0, "time between two lines")
	text := flag.String("text", "", "put at the end of each line")
	toStderr := flag.Bool("stderr", false, "print to standard error")
	sleep := flag.Duration("sleep", 0, "wait after the last line; below 0: without end")
	code := flag.Int("exit", 0, "exit code")
	term := flag.String("term", "default", "answer to SIGTERM: default, ignore, or trap (say so and leave)")
	termCode := flag.Int("term-exit", 143, "exit code of -term trap")
	flag.Parse()

	onTerm(*term, *termCode)
	out := os.Stdout
	if *toStderr {
		out = os.Stderr
	}
	words := strings.TrimSpace(place() + " " + *text)
	for number := 0; *lines < 0 || number < *lines; number++ {
		if number > 0 {
			time.Sleep(*interval)
		}
		// A write a line, straight to the descriptor: nothing is lost when the process is killed.
		if _, err := fmt.Fprintf(out, "line=%d %s\n", number, words); err != nil {
			os.Exit(74)
		}
	}
	for *sleep < 0 {
		time.Sleep(time.Hour)
	}
	time.Sleep(*sleep)
	os.Exit(*code)
}
