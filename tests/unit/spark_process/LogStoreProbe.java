package airflow_merge_provider;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/** Prints what the log stores do to a disk, and to an object store whose writes fail. */
public class LogStoreProbe {
  static final List<String> CALLS = new ArrayList<>();

  public static void main(String[] arguments) throws Exception {
    String folder = arguments[0];
    Configuration configuration = new Configuration();
    java.nio.file.Path events = java.nio.file.Path.of(folder, "events.jfr");
    try (Recording recording = new Recording()) {
      recording.enable("jdk.FileForce").withoutThreshold();
      recording.start();
      new HardLinkLogStore(configuration)
          .write(new Path(folder, "0.json"), lines(), false, configuration);
      recording.stop();
      recording.dump(events);
    }
    for (RecordedEvent event : RecordingFile.readAllEvents(events)) {
      System.out.println("forced " + java.nio.file.Path.of(event.getString("path")).getFileName());
    }
    linkWhereThereAreNoLinks(java.nio.file.Path.of(folder, "no_links.zip"));
    configuration.set("fs.failing.impl", Failing.class.getName());
    for (boolean overwrite : new boolean[] {true, false}) {
      CALLS.clear();
      try {
        new ConditionalWriteLogStore(configuration)
            .write(new Path("failing://bucket/0.json"), lines(), overwrite, configuration);
      } catch (IOException error) {
        System.out.println(CALLS + " " + error.getMessage());
      }
    }
  }

  /** The file system of a ZIP archive has no hard links. */
  private static void linkWhereThereAreNoLinks(java.nio.file.Path archive) throws IOException {
    try (java.nio.file.FileSystem files = FileSystems.newFileSystem(archive, Map.of("create", "true"))) {
      java.nio.file.Path part = Files.writeString(files.getPath("/part"), "{}");
      for (boolean isSingleWriter : new boolean[] {false, true}) {
        try {
          HardLinkLogStore.linkOnce(part, files.getPath("/0.json"), isSingleWriter);
        } catch (FileAlreadyExistsException error) {
          throw error;
        } catch (IOException error) {
          System.out.println("refused " + error.getMessage());
        }
      }
      System.out.println("linked " + Files.exists(files.getPath("/0.json")));
    }
  }

  private static Iterator<String> lines() {
    return List.of("{}", "{}").iterator();
  }

  static class FailingStream extends OutputStream implements Abortable {
    @Override
    public void write(int character) throws IOException {
      throw new IOException("part 1 is lost");
    }

    @Override
    public void write(byte[] content, int offset, int length) throws IOException {
      throw new IOException("part 1 is lost");
    }

    @Override
    public void close() {
      CALLS.add("close");
    }

    @Override
    public AbortableResult abort() {
      CALLS.add("abort");
      return null;
    }
  }

  public static class Failing extends RawLocalFileSystem {
    @Override
    public URI getUri() {
      return URI.create("failing://bucket");
    }

    @Override
    protected void checkPath(Path path) {}

    @Override
    public FSDataOutputStream create(Path path, boolean overwrite) throws IOException {
      return new FSDataOutputStream(new FailingStream(), null);
    }

    @Override
    public FSDataOutputStreamBuilder createFile(Path path) {
      return new Builder(this, path);
    }
  }

  static class Builder extends FSDataOutputStreamBuilder<FSDataOutputStream, Builder> {
    Builder(FileSystem files, Path path) {
      super(files, path);
    }

    @Override
    public Builder getThisBuilder() {
      return this;
    }

    @Override
    public FSDataOutputStream build() throws IOException {
      return new FSDataOutputStream(new FailingStream(), null);
    }
  }
}
